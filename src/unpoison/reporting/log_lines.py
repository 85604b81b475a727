"""Formats log lines. Only the command line asks for this; the library by itself configures nothing.

Lines for people on a terminal, plain lines with a date elsewhere, or one JSON object a line with every `extra` field. The same
in every process of `unpoison run`, so that what handlers log obeys --log-level and --log-format too. An app that sets up
logging while it is imported, or in `on_worker_start`, wins: see `offer` and `settle`.
"""

import json
import logging
import os
import shutil
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from unpoison.model.wording import json_text, one_line, visible
from unpoison.port.broker_url import masked_text
from unpoison.reporting.current_message import MessageFields, is_ours

LEVELS = ("debug", "info", "warning", "error")
FORMS = ("text", "json")

_COLOURS = {"WARNING": 33, "ERROR": 31, "CRITICAL": 31, "DEBUG": 36}
INDENT = len("06:17:03 warning ")
_BREAK = "\n" + " " * INDENT
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

STANDARD_ERROR = threading.RLock()
"""Held while lines are written to standard error, so that none of them lands inside another one."""


@dataclass(frozen=True, slots=True)
class LogStyle:
    """What --log-level and --log-format say. `str` and `parsed` carry it to the processes below."""

    level: str
    form: str

    def __str__(self) -> str:
        return f"{self.level}:{self.form}"

    @classmethod
    def parsed(cls, text: str) -> "LogStyle | None":
        level, _, form = text.partition(":")
        return cls(level, form) if form else None


class TerminalLines(logging.Formatter):
    """Time of day, level in colour, text; broken between words, with what follows below the text."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower():7}"
        if "NO_COLOR" not in os.environ and record.levelname in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelname]}m{level}\x1b[0m"
        lines = [line for part in _text(record).split("\n") for line in _wrapped(part)]
        return f"{moment} {level} {_BREAK.join(lines)}{_traceback(self, record)}"


class PlainLines(logging.Formatter):
    """Date and time with the zone, level, logger, text."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        return f"{moment} {record.levelname.lower()} {record.name}: {_text(record)}{_traceback(self, record)}"


class JSONLines(logging.Formatter):
    """One JSON object a line, with every field that was given as `extra`, and the message that a handler works on."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked_text(record.getMessage()) if is_ours(record) else record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[f"extra_{name}" if name in line else name] = value
        if record.exc_info:
            line["traceback"] = masked_text(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = record.stack_info
        return json_text({name: _plain(value) for name, value in line.items()}, indent=None)


class WholeLines(logging.StreamHandler[Any]):
    """Writes to standard error without landing inside what a worker prints there."""

    def emit(self, record: logging.LogRecord) -> None:
        with STANDARD_ERROR:
            super().emit(record)


def configure(style: LogStyle) -> None:
    """For the process of `unpoison run`: its own lines are written in this style whatever an app sets up."""
    offer(style)
    ours = logging.getLogger("unpoison")
    ours.propagate, ours.handlers = False, [_offered[0]]
    ours.setLevel(style.level.upper())


_offered: list[logging.Handler] = []


def offer(style: LogStyle) -> None:
    """Have lines written in this style as long as the app does not set up logging.

    As the handler of last resort, and not as one of the root logger: `logging.basicConfig` in an app would do nothing then.
    """
    handler = WholeLines()
    handler.addFilter(MessageFields())
    if style.form == "json":
        handler.setFormatter(JSONLines())
    else:
        handler.setFormatter(TerminalLines() if sys.stderr.isatty() else PlainLines())
    _offered[:] = [handler]
    logging.lastResort = handler
    logging.getLogger().setLevel(style.level.upper())


def settle() -> None:
    """Called once the app has had its chance to set up logging. What it has set up stays.

    A handler is put where there is none, since `logging.info(…)` would set up one of its own.
    """
    replace_default()
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)
    # `logging.config` switches off every logger that it does not know, unless told otherwise.
    logging.getLogger("unpoison").disabled = False


def replace_default() -> None:
    """Replace the handler that `logging.info(…)` or a bare `basicConfig(level=…)` has set up, so that lines get our form."""
    if _offered:
        root = logging.getLogger()
        root.handlers = [handler for handler in root.handlers if not _is_bare(handler)]


def _is_bare(handler: logging.Handler) -> bool:
    """Whether this is the one that `logging.info(…)` or `logging.basicConfig()` makes where nothing is said about the form."""
    form = handler.formatter
    return (
        type(handler) is logging.StreamHandler
        and handler.stream in (sys.stderr, sys.__stderr__)
        and not handler.filters
        and type(form) is logging.Formatter
        and form._fmt == logging.BASIC_FORMAT  # noqa: SLF001 - there is no other way to ask
        and form.datefmt is None
    )


def _text(record: logging.LogRecord) -> str:
    """Ours are one line each, so a line end in them comes from a payload and could fake a line of its own."""
    return one_line(masked_text(record.getMessage())) if is_ours(record) else visible(record.getMessage()) + _message(record)


def _message(record: logging.LogRecord) -> str:
    """By which message a line of a handler was logged, with the names that JSON lines have for it."""
    given = vars(record)
    if not all(name in given for name in ("source", "message_id", "attempt")):
        return ""
    return one_line(f" [source={given['source']} message_id={given['message_id']} attempt={given['attempt']}]")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + visible(masked_text(formatter.formatException(record.exc_info))) if record.exc_info else ""


def _wrapped(text: str) -> list[str]:
    width = max(shutil.get_terminal_size().columns - INDENT, 20)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False, expand_tabs=False)


def _plain(value: object) -> object:
    """As it is if JSON has a way to write it. What a handler gives as `extra` may be anything, and the line must stay JSON."""
    try:
        json.dumps(value, default=str, allow_nan=False)
    except Exception:  # even `str` and `repr` are the user's code here
        try:
            return repr(value)
        except Exception as error:
            return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return value
