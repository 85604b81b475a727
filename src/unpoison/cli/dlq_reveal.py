"""`unpoison dlq reveal` and `unpoison redaction`: what is redacted in the store, and how somebody sees it who has to."""

import sys
from contextlib import closing

import click

from unpoison.cli.input_output import print_json
from unpoison.cli.screen import console, print_letter
from unpoison.cli.target import GivenTarget, fleet, fleet_options, target_options
from unpoison.errors import CapabilityError
from unpoison.model.wording import acts_on_terminals, counted, one_line
from unpoison.redaction.rules import rules_from
from unpoison.store.choice import check_collects
from unpoison.store.letters.people import operator
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.sql_letters import letters_for


@click.command(
    "reveal",
    epilog="\b\nExamples:\n"
    "  unpoison dlq reveal orders-12 --reason 'ticket 4711' --app shop:app\n"
    "  unpoison dlq reveal orders-12 --reason 'ticket 4711' --app shop:app --json",
)
@click.argument("letter_id", metavar="ID")
@target_options
@click.option("--reason", metavar="TEXT", required=True, help="Why you have to see it, for the audit log.")
@click.option("--json", "as_json", is_flag=True, help="Print the letter as one JSON object.")
@click.option("--body", "only_body", is_flag=True, help="Write only the body to standard output, byte for byte.")
def reveal(*, letter_id: str, given: GivenTarget, reason: str, as_json: bool, only_body: bool) -> None:
    """Show a redacted dead letter as it was. Needs the key.

    The audit log has who, when, which and why before anything is shown.
    """
    if as_json and only_body:
        raise click.UsageError("--json and --body both write to standard output. Give one of them.")
    if not reason.strip():
        raise click.UsageError("Say why you have to see it: --reason TEXT. The audit log keeps it.")
    chosen = given.opened()
    with chosen.one_look():
        dlq, letter = chosen.find(letter_id)
        try:
            shown = dlq.manager.reveal(letter.id, reason=reason)
        except CapabilityError as error:
            raise click.ClickException(f"{error} To see it: unpoison dlq show {letter.id}") from None
    if only_body:
        if sys.stdout.isatty() and acts_on_terminals(shown.body):
            raise click.ClickException("The body contains bytes that a terminal would act on. Write it to a file: add > body.bin")
        sys.stdout.buffer.write(shown.body)
        sys.stdout.buffer.flush()
    elif as_json:
        print_json(shown.as_json())
    else:
        print_letter(shown, console())


@click.command(
    "redaction",
    epilog="\b\nExamples:\n  unpoison redaction --app shop:app\n  unpoison redaction --app shop:app --remove body.customer.name",
)
@fleet_options
@click.option("--remove", multiple=True, metavar="RULE", help="Take this rule away. The audit log has it.")
@click.option("--json", "as_json", is_flag=True, help='Print {"rules": [...], "keys": {ID: originals}}.')
def redaction(*, app: str | None, url: str | None, store: str | None, remove: tuple[str, ...], as_json: bool) -> None:
    """Show by which rules the letters of a store are redacted, and with which keys.

    Rules are added by consumers and collectors that have them. A consumer that still has a rule adds it again.
    """
    chosen = fleet(app, url, store)
    check_collects(chosen.url, chosen.store)
    with closing(letters_for(chosen.store)) as letters:
        letters.open(create=False)
        if remove:
            _remove(letters, remove)
        found, originals = letters.redaction.in_force, letters.redaction.originals_by_key()
    if as_json:
        print_json({"rules": list(map(str, found.rules)), "keys": dict(originals)})
        return
    if not found.rules:
        click.echo("Nothing is redacted in this store.")
    for rule in found.rules:
        click.echo(one_line(str(rule)))
    for id_, count in originals.items():
        click.echo(f"Key {id_}: {counted(count, 'original')} encrypted with it.")


def _remove(letters: LetterStore, remove: tuple[str, ...]) -> None:
    rules, known = rules_from(remove), letters.redaction.in_force.rules
    if unknown := [rule for rule in rules if rule not in known]:
        raise click.ClickException(
            f"There is no rule {str(unknown[0])!r} in this store. To see those that there are, leave out --remove."
        )
    letters.redaction.remove(rules, operator())
