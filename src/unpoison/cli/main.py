"""Which commands are there, and how does each of them end?

Exit codes: 0 done; 1 a failure, said in one sentence with what to do; 2 wrong usage; 130 after Ctrl-C.
"""

import difflib
import errno
import gc
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from unpoison.cli.input_output import flush_all
from unpoison.errors import UnpoisonError
from unpoison.model.wording import visible
from unpoison.port.broker_url import masked_text


class LazyGroup(click.Group):
    """A group that imports a command only when it is used, so that `unpoison --help` stays fast.

    `table` maps a command's name to ("module:variable", the sentence that --help shows).
    """

    def __init__(self, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        place, sentence = self.table[cmd_name]
        module, _, variable = place.partition(":")
        found: click.Command = getattr(import_module(module), variable)
        found.short_help = sentence
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.table, 1)
            meant = f"Did you mean {close[0]!r}?" if close else f"The commands are {', '.join(self.table)}."
            ctx.fail(f"No such command {name!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self.table.items()])


COMMANDS = {
    "demo": ("unpoison.cli.demo.command:command", "Watch poison messages being isolated, on a SQLite file."),
    "run": ("unpoison.cli.run:command", "Consume the sources of apps until stopped, or until empty."),
    "publish": ("unpoison.cli.publish:command", "Send messages from arguments, a file or standard input."),
    "dlq": ("unpoison.cli.main:dlq", "List, show, replay, discard or delete dead letters."),
    "collect": ("unpoison.cli.collect:collect", "Move dead letters from the DLQs of a broker into the store."),
    "redaction": ("unpoison.cli.dlq_reveal:redaction", "Show what is redacted in the store."),
    "audit": ("unpoison.cli.collect:audit", "Show who has changed which dead letters in the store."),
    "status": ("unpoison.cli.status:command", "Show what waits, what is paused or down, and who consumes."),
    "pause": ("unpoison.cli.pause:pause", "Pause a source for all its consumers."),
    "resume": ("unpoison.cli.pause:resume", "Resume a source that is paused or has an outage."),
    "notify": ("unpoison.cli.notify:command", "Send a test notice, and say what came back."),
    "plan": ("unpoison.cli.plan:command", "See what retries add to the traffic, and when they come."),
    "alerts": ("unpoison.cli.alerts:command", "Print alerts for Prometheus or CloudWatch, or a Grafana dashboard."),
    "plan-topology": ("unpoison.cli.topology:plan_topology", "Print what an administrator must create or grant for an app."),
    "migrate": ("unpoison.cli.topology:migrate", "Create the tables that a database broker needs, or print the SQL."),
    "doctor": ("unpoison.cli.doctor:command", "Check a broker or an app for settings that lose or loop messages."),
    "leave": ("unpoison.cli.topology:leave", "Kafka: move waiting messages back to their topic, to stop using unpoison."),
    "completion": ("unpoison.cli.main:completion", "Print the completion script for bash, zsh or fish."),
}

LANGUAGE = """
\b
Filters, for --where:
  timeout "timed out"         in error, traceback, body, ids or key
  error:timeout               in the error; traceback: reason: rule: body:
  class:crash source:orders   state: key: id: version: consumer: header.NAME:
  group:3f9a                  fingerprints that begin so
  body.items[].sku:A-1*       a member of a JSON body; * stands for anything
  body.total>100 attempts>=3  numbers; also replays
  age>1h                      since the last failure: s m h d w
  failed:2026-08-01           the day, or a time, in UTC; also first_failed
  a b   a or b   not a   -a   and ( ) around several
  key=x   key!=x   "a b"      exactly this; quotes take a text as it is
"""

DLQ_COMMANDS = {
    "ls": ("unpoison.cli.dlq:ls", "List dead letters, oldest first."),
    "count": ("unpoison.cli.dlq:count", "Count dead letters by source and state."),
    "groups": ("unpoison.cli.dlq:groups", "Count dead letters by what failed."),
    "show": ("unpoison.cli.dlq:show", "Show everything known about one dead letter."),
    "reveal": ("unpoison.cli.dlq_reveal:reveal", "Show a redacted dead letter as it was. Needs the key."),
    "replay": ("unpoison.cli.dlq_changes:replay", "Send dead letters to their source again."),
    "discard": ("unpoison.cli.dlq_changes:discard", "Mark dead letters as discarded."),
    "restore": ("unpoison.cli.dlq_notes:restore", "Let discarded letters wait again. Needs a store."),
    "note": ("unpoison.cli.dlq_notes:note", "Note something about a letter or a group. Needs a store."),
    "own": ("unpoison.cli.dlq_notes:own", "Say who looks after a letter or a group. Needs a store."),
    "snooze": ("unpoison.cli.dlq_notes:snooze", "Hear no more of a group for a while. Needs a store."),
    "resolve": ("unpoison.cli.dlq_notes:resolve", "Say in which version a group is resolved. Needs a store."),
    "export": ("unpoison.cli.dlq_files:export", "Write letters to a file, one JSON object a line. Needs a store."),
    "import": ("unpoison.cli.dlq_files:import_letters", "Put letters that were exported into a store."),
    "purge": ("unpoison.cli.dlq_changes:purge", "Delete dead letters of a source for good."),
}

cli = LazyGroup(
    COMMANDS,
    name="unpoison",
    help="unpoison makes message consumers poison-proof: what fails for good is isolated, explained and can be sent again.",
    epilog="\b\nExamples:\n  unpoison demo\n  unpoison run shop:app\n  unpoison dlq ls --app shop:app",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name="unpoison", message="%(prog)s %(version)s")(cli)


COLLECT_AFTER = 100_000


def _collect_rarely() -> None:
    """A hundred thousand letters are a million objects, and none of them is part of a cycle: the garbage collector would look at
    them again and again, for a fifth of the whole time."""
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


dlq = LazyGroup(
    DLQ_COMMANDS,
    name="dlq",
    callback=_collect_rarely,
    help="List, show, replay, discard or delete dead letters.\n\n"
    "Each command takes --app module:app, which knows the broker and the sources, or --url URL. replay --all and purge take one "
    f"source: add --source NAME where there are several.\n\n{LANGUAGE}",
    epilog="\b\nExamples:\n"
    "  unpoison dlq ls --app shop:app\n"
    "  unpoison dlq show orders-12 --app shop:app\n"
    "  unpoison dlq replay --all --url sqlite:///shop.db --source orders",
)


@click.command(
    "completion",
    epilog="\b\nExamples:\n"
    "  echo 'eval \"$(unpoison completion bash)\"' >> ~/.bashrc\n"
    "  echo 'eval \"$(unpoison completion zsh)\"' >> ~/.zshrc\n"
    "  unpoison completion fish > ~/.config/fish/completions/unpoison.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    To install it, run the line for your shell below and open a new terminal.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - for this command alone

    script = get_completion_class(shell)
    if script is None:  # click knows all three
        raise click.ClickException(f"This version of click cannot complete in {shell}. Upgrade it: pip install -U click")
    click.echo(script(ctx.find_root().command, {}, "unpoison", "_UNPOISON_COMPLETE").source())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program `unpoison`."""
    warnings.showwarning = _show_warning
    try:
        code = _exit_code(arguments)
        flush_all()
    except OSError as error:  # the system's, not a mistake in the code: a full disk, a closed pipe
        code = 1
        if error.errno != errno.EPIPE:  # the reader has seen enough, as in unpoison dlq ls | head
            _say(_meaning(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python tries to write the rest when it ends, and prints a traceback
    sys.exit(code)


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        code = cli.main(arguments, prog_name="unpoison", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        _say(error.format_message())
        return error.exit_code
    except UnpoisonError as error:
        _say(str(error))
        return 1
    except click.Abort as error:  # Ctrl-C, or the end of the input where an answer was asked for
        if error.__cause__ is None:
            click.echo(err=True)  # a question stands in this line; in all other cases click has ended it
        return 130
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    """Print one error on standard error. Passwords in URLs are masked, wherever the sentence comes from."""
    with suppress(OSError):  # standard error may be full or closed too
        click.echo(f"Error: {visible(masked_text(text))}", err=True)


def _meaning(error: OSError) -> str:
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename!r}: {why}. Check that it exists and that this user may use it."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        import tempfile  # noqa: PLC0415 - 3 ms that no other command should pay for

        return (
            f"{why}: the disk of the output, or of temporary files ({tempfile.gettempdir()}), is full. Free some space there. "
            f"What the command did before that is done."
        )
    return f"The output could not be written: {why}. What the command did before that is done."


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one sentence, without the file and line of the code that raised it."""
    click.echo(f"Warning: {visible(masked_text(str(message)))}", err=True)
