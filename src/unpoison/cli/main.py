"""Which commands are there, and how does each of them end?

Exit codes: 0 done; 1 a failure, said in one sentence with what to do; 2 wrong usage; 130 after Ctrl-C.
"""

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from unpoison.cli.json_output import flush_all
from unpoison.cli.lazy import LazyGroup
from unpoison.errors import UnpoisonError
from unpoison.model.wording import visible
from unpoison.port.broker_url import masked_text

COMMANDS = {
    "demo": ("unpoison.cli.demo.command", "Watch poison messages being isolated, on a SQLite file."),
    "run": ("unpoison.cli.run", "Consume the sources of apps until stopped, or until empty."),
    "publish": ("unpoison.cli.publish", "Send messages from arguments, a file or standard input."),
    "dlq": ("unpoison.cli.dlq.group", "Look at dead letters, send them again, or give them up."),
    "plan": ("unpoison.cli.plan.command", "See what retries add to the traffic, and when they come."),
    "plan-topology": ("unpoison.cli.topology.command", "Print what an administrator must create or grant for an app."),
    "migrate": ("unpoison.cli.migrate", "Make the tables that a database broker needs, or print how."),
    "doctor": ("unpoison.cli.doctor.command", "Check a broker or an app for what loses or loops messages."),
    "leave": ("unpoison.cli.leave", "Put what waits on Kafka back into its topic, to stop using unpoison."),
    "completion": ("unpoison.cli.completion", "Print the completion script for bash, zsh or fish."),
}

cli = LazyGroup(
    COMMANDS,
    name="unpoison",
    help="unpoison makes message consumers poison-proof: what fails for good is isolated, explained and can be sent again.",
    epilog="\b\nExamples:\n  unpoison demo\n  unpoison run shop:app\n  unpoison dlq ls --app shop:app",
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(package_name="unpoison", message="%(prog)s %(version)s")(cli)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program `unpoison`."""
    warnings.showwarning = _show_warning
    try:
        code = _exit_code(arguments)
        flush_all()
    except OSError as error:  # of the system, and nobody's mistake in the code: a full disk, an output that is gone
        code = 1
        if error.errno != errno.EPIPE:  # whoever read has seen enough, as in unpoison dlq ls | head
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
    """One sentence on standard error. No URL in it has a password, wherever the sentence comes from."""
    with suppress(OSError):  # that is full, or gone, as well
        click.echo(f"Error: {visible(masked_text(text))}", err=True)


def _meaning(error: OSError) -> str:
    why = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename!r}: {why}. Check that it is there and that this user may use it."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        import tempfile  # noqa: PLC0415 - 3 ms that no other command should pay for

        return (
            f"{why}: the disk that the output goes to is full, or that of temporary files ({tempfile.gettempdir()}). Free some "
            f"space there. What the command did before that is done."
        )
    return f"The output could not be written: {why}. What the command did before that is done."


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one sentence: the place of its code says nothing to a person at a command line."""
    click.echo(f"Warning: {visible(masked_text(str(message)))}", err=True)
