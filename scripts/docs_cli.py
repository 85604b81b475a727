"""What can be typed at the command line? Writes docs/cli.md from the commands themselves; `make docs` runs it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from unpoison.cli.main import cli

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

OPENING = """\
# Command line

This page has the `--help` of every command. `make docs` writes it from the code.

- **Exit codes.** 0: done. 1: a failure; one error says what to do. 2: wrong usage. 130: ended by Ctrl-C (`run` drains
  first).
- **Streams.** Results go to standard output; log lines, progress and errors to standard error. With `--json` standard output
  holds one JSON document and nothing else.
- **Confirmation.** Commands that destroy something ask first. Without a terminal they refuse unless `--yes` is given.
- **Colours and bars** appear on a terminal only; `NO_COLOR=1` turns colours off. `unpoison completion` sets up your shell; it
  completes groups of dead letters too.

## Log lines of `unpoison run`

`--log-level` and `--log-format` apply to log lines of your handlers too, in every process and thread. An app that
sets up logging itself, while it is imported or in `@app.on_worker_start`, wins: its own lines use its levels and formats.
Output of handlers on standard output and standard error is passed on line by line, so lines of several workers never mix. If a
worker is killed, no output is lost. If the consumer itself is killed, output of its last milliseconds may be missing.

With `--log-format json` each line is one JSON object with `time`, `level`, `logger` and `message`, and the fields that a handler
passed as `extra`. Lines of handlers also say which message they are about, and lines of unpoison itself have an `event` with its
fields, whose names do not change: see [logs](logs.md).
"""


def page() -> str:
    return OPENING + "".join(_section(path, command) for path, command in _commands(cli, ("unpoison",)))


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from _commands(found, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    words = " ".join(path)
    return f"\n## {words}\n\n```console\n$ {words} --help\n{_help(path, command)}\n```\n"


def _help(path: tuple[str, ...], command: click.Command) -> str:
    """As a terminal of 80 columns or more shows it; click leaves two of them free."""
    settings = {**cli.context_settings, "terminal_width": 78}
    context = click.Context(command, info_name=" ".join(path), **settings)
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


if __name__ == "__main__":
    if not PAGE.exists() or PAGE.read_text() != page():
        PAGE.write_text(page())
        sys.stdout.write(f"{PAGE.name}: written\n")
