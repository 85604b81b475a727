"""Loads the app that `module:app` or `path/to/file.py:app` names.

Importing an app runs the user's code, which may fail in any way. Every failure becomes one error that says what failed, where,
and what to do.
"""

import functools
import os
import re
import sys
import traceback as tracebacks
from contextlib import redirect_stdout
from pathlib import Path

import click

from unpoison.app import App, consumers_of, worker_hooks_of
from unpoison.decide.options import settings_from
from unpoison.errors import ConfigError
from unpoison.flow.runnable import RunnableApp
from unpoison.model.failure import describe
from unpoison.programs.importing import import_app
from unpoison.reporting.log_lines import LogStyle, settle
from unpoison.workers.template_client import ImportFailed

_PLACE = re.compile(r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*(?:\n +(?P<code>[^\n]*))?', re.MULTILINE)

_LIMIT = ("UNPOISON_START_TIMEOUT",)


class AppNotLoaded(click.ClickException):
    """The app could not be found, or failed while it was imported."""


def load(reference: str) -> App:
    """The app itself, imported into this process: for commands that only look at its URL and its sources."""
    try:
        with redirect_stdout(sys.stderr):  # what an app prints while it is imported is not the command's output
            return import_app(whole(reference))
    except (Exception, SystemExit) as error:  # code of the user
        name, text, traceback = describe(error)
        said = text if isinstance(error, ConfigError) else f"{reference!r} could not be imported: {name}: {text}"
        raise AppNotLoaded(_failed(reference, said, traceback)) from None


def runnable(reference: str, workers: int | None = None, style: LogStyle | None = None) -> RunnableApp:
    """The app made ready to run. Its worker processes import it; this process does only if its handlers run here."""

    @functools.cache
    def app() -> App:
        imported = load(reference)
        settle()
        return imported

    try:
        # Before it is imported the app cannot say how long that may take; the environment can.
        limit = settings_from({"url": "memory://"}, environment={name: os.environ[name] for name in _LIMIT if name in os.environ})
        return RunnableApp.from_reference(
            whole(reference),
            lambda: consumers_of(app()),
            limit.start_timeout,
            workers=workers,
            worker_hooks=lambda: worker_hooks_of(app()),
            style=style,
        )
    except ImportFailed as error:
        raise AppNotLoaded(_failed(reference, error.said, error.traceback)) from None


def whole(reference: str) -> str:
    """`shop` and `shop.py` mean the variable `app` in it."""
    return reference if ":" in reference else f"{reference}:app"


def _failed(reference: str, said: str, traceback: str) -> str:
    place = _place(traceback)
    if not place:  # it failed before the user's code ran, and `said` says what to do
        return said
    if ": ModuleNotFoundError" in said:
        remedy = f"Install what is missing into this Python environment, {sys.prefix}, or fix the import."
    elif ": SystemExit" in said:
        remedy = "An app must not end the program while it is imported: move that under if __name__ == '__main__':"
    else:
        module = whole(reference).rpartition(":")[0]
        see = f"python {module}" if module.endswith(".py") else f"python -c 'import {module}'"
        remedy = f"Fix it there. For the whole traceback run: {see}"
    return f"{said}\n  {place}\n{remedy}"


def _place(traceback: str) -> str:
    """File, line and code: the innermost place in the user's own files."""
    places = [found for found in _PLACE.finditer(traceback) if not _is_foreign(found["file"])]
    return "{file}, line {line}: {code}".format(**places[-1].groupdict("")).removesuffix(": ") if places else ""


def _is_foreign(file: str) -> bool:
    """Whether the file is unpoison's own, an installed package's or Python's."""
    path = Path(file)
    return file.startswith("<") or "site-packages" in path.parts or any(folder in path.parents for folder in _not_the_users())


@functools.cache
def _not_the_users() -> tuple[Path, Path]:
    return Path(__file__).parents[1], Path(tracebacks.__file__).parent
