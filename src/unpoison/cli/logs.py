"""How are log lines written? Only the command line configures logging; the library never does.

Lines for people on a terminal, plain lines with a date elsewhere, or one JSON object a line with every `extra` field.
"""

import logging
import os
import shutil
import sys
import textwrap
import time
from datetime import UTC, datetime

import click

from unpoison.cli.escaping import json_text, one_line, visible

LEVELS = ("debug", "info", "warning", "error")

_COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red", "DEBUG": "cyan"}
INDENT = len("06:17:03 warning ")
_BREAK = "\n" + " " * INDENT
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TerminalLines(logging.Formatter):
    """Time of day, level in colour, text; broken between words, with what follows below the text."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower():7}"
        if "NO_COLOR" not in os.environ and record.levelname in _COLOURS:
            level = click.style(level, fg=_COLOURS[record.levelname])
        lines = [line for part in _text(record).split("\n") for line in _wrapped(part)]
        return f"{moment} {level} {_BREAK.join(lines)}{_traceback(self, record)}"


class PlainLines(logging.Formatter):
    """Date and time with the zone, level, logger, text."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        return f"{moment} {record.levelname.lower()} {record.name}: {_text(record)}{_traceback(self, record)}"


class JSONLines(logging.Formatter):
    """One JSON object a line, with every field that was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line, indent=None)


def configure(level: str, form: str) -> logging.Handler:
    """Send what is logged to standard error."""
    handler = logging.StreamHandler()
    if form == "json":
        handler.setFormatter(JSONLines())
    else:
        handler.setFormatter(TerminalLines() if sys.stderr.isatty() else PlainLines())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    return handler


def _text(record: logging.LogRecord) -> str:
    """Ours are one line each, so a line end in them comes from a payload and could fake a line of its own."""
    ours = record.name.partition(".")[0] == "unpoison"
    return one_line(record.getMessage()) if ours else visible(record.getMessage())


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + visible(formatter.formatException(record.exc_info)) if record.exc_info else ""


def _wrapped(text: str) -> list[str]:
    width = max(shutil.get_terminal_size().columns - INDENT, 20)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False, expand_tabs=False)
