"""What is known about one dead letter?"""

import sys

import click

from unpoison.cli.dlq.target import target, target_options
from unpoison.cli.json_output import print_json
from unpoison.cli.letter import print_letter
from unpoison.cli.screen import console
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.wording import acts_on_terminals


@click.command(
    "show",
    epilog="\b\nExamples:\n"
    "  unpoison dlq show orders-12 --app shop:app\n"
    "  unpoison dlq show orders-12 --app shop:app --json\n"
    "  unpoison dlq show orders-12 --app shop:app --body > body.bin",
)
@click.argument("letter_id", metavar="ID")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print the letter as one JSON object.")
@click.option("--body", "only_body", is_flag=True, help="Write the body to standard output, bit for bit, and nothing else.")
def command(letter_id: str, app: str | None, url: str | None, source: str | None, as_json: bool, only_body: bool) -> None:
    """Show everything known about one dead letter: what happened, body, headers, earlier attempts, traceback.

    ID is the letter's own id, as `ls` shows it, or the id of its message.
    """
    if as_json and only_body:
        raise click.UsageError("--json and --body both say what goes to standard output. Give one of them.")
    chosen = target(app, url, source)
    with chosen.one_look():
        letter = chosen.find(letter_id)[1]
    if only_body:
        _write(letter)
    elif as_json:
        print_json(letter.as_json())
    else:
        print_letter(letter, console())


def _write(letter: DeadLetter) -> None:
    if sys.stdout.isatty() and acts_on_terminals(letter.body):
        raise click.ClickException(
            f"The body of {letter.id!r} holds bytes that a terminal would act on. Send it to a file: add > body.bin"
        )
    sys.stdout.buffer.write(letter.body)
    sys.stdout.buffer.flush()
