"""`unpoison dlq note`, `own`, `snooze`, `resolve` and `restore`: what people say about letters and groups in the store."""

import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import click

from unpoison.cli.chosen_letters import DLQ, Target
from unpoison.cli.completion import complete_group, where_option
from unpoison.cli.input_output import Duration, print_json
from unpoison.cli.screen import moment, said_of_group
from unpoison.cli.target import GivenTarget, target_options
from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import iso
from unpoison.model.wording import counted, one_line
from unpoison.store.letters.people import by_ids, operator
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.scopes import scope_of
from unpoison.store.letters.values import NOTE, OWNER, Change, GroupWork, Selection

GROUP = "group:"


def note_or_own(what: str, about: str, verb: str) -> click.Command:
    """The two commands that differ in a word."""

    @click.command(
        verb,
        help=f"{about}\n\nID is that of a letter, or group:FINGERPRINT as `groups` shows it, or how that begins. What is said of "
        "a group outlives its letters.",
        epilog=f"\b\nExamples:\n  unpoison dlq {verb} orders-12 'TEXT' --app shop:app\n"
        f"  unpoison dlq {verb} group:3f9a 'TEXT' --app shop:app\n  unpoison dlq {verb} group:3f9a --clear --app shop:app",
    )
    @click.argument("name", metavar="ID", shell_complete=complete_group)
    @click.argument("text", required=False)
    @target_options
    @click.option("--clear", is_flag=True, help="Remove it.")
    @click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
    def command(*, given: GivenTarget, name: str, text: str | None, clear: bool, as_json: bool) -> None:
        if (text is None) != clear:
            raise click.UsageError(f"Give the {what}, or --clear to remove it.")
        chosen, store = given.in_store()
        if name.startswith(GROUP):
            group = _group(chosen, store, name)
            work = store.change_group(group, by=operator(), **{what: text})
            _tell_group(group, work, as_json=as_json)
            return
        dlq, letter = chosen.find(name)
        number = next(each.number for each in scope_of(dlq.letters, dlq.source).find(store, letter.id))
        selection = Selection(by_ids([letter.id]), array("q", [number]))
        store.change(selection, Change(what, text), by=operator())
        if as_json:
            print_json(dlq.manager.get(letter.id).as_json())
        else:
            click.echo(f"{one_line(letter.id)}: {f'{what} removed' if clear else f'{what} is now: {one_line(text or str())}'}")

    return command


note = note_or_own(NOTE, "Note something about a dead letter or a group.", "note")
own = note_or_own(OWNER, "Say who looks after a dead letter or a group.", "own")


def _group(chosen: Target, store: LetterStore, name: str) -> str:
    """The fingerprint that is meant. Its letters may have been replayed or discarded: it is resolved after that."""
    begun = name.removeprefix(GROUP)
    with chosen.one_look():
        sources = {source for dlq in chosen.dlqs for source in scope_of(dlq.letters, dlq.source).sources(store)}
        known = {group.fingerprint for group in store.groups() if sources & group.counts.keys()}
    found = [begun] if begun in known else sorted(each for each in known if each.startswith(begun))
    if len(found) == 1:
        return found[0]
    if not found:
        raise click.ClickException(f"No group of letters begins with {begun!r}. To see those that wait: unpoison dlq groups")
    some = ", ".join(found[:5])
    raise click.ClickException(f"{len(found)} groups begin with {begun!r}: {some}. Write more of the one that you mean.")


def _tell_group(group: str, work: GroupWork, *, as_json: bool) -> None:
    state = work.state(time.time())
    if as_json:
        moments = {name: value and iso(value) for name, value in _fields(work).items() if name.endswith(("_at", "_until"))}
        print_json({"group": group, "state": state, **_fields(work), **moments})
        return
    click.echo(said_of_group(group, _in_full(state, work), work.owner, work.note))


def _in_full(state: str, work: GroupWork) -> str:
    """The state, and until when or in which version it is."""
    if state == "snoozed" and work.snoozed_until is not None:
        return f"snoozed until {moment(work.snoozed_until)}"
    versions = {"resolved": work.resolved_in, "regressed": work.regressed_in}
    return f"{state} in {one_line(versions[state] or '')}" if state in versions else state


def _fields(work: GroupWork) -> dict[str, Any]:
    return {name: getattr(work, name) for name in work.__struct_fields__}


@click.command(
    "snooze",
    epilog="\b\nExamples:\n"
    "  unpoison dlq snooze group:3f9a 2d --app shop:app\n"
    "  unpoison dlq snooze group:3f9a 0s --app shop:app",
)
@click.argument("name", metavar="group:FINGERPRINT", shell_complete=complete_group)
@click.argument("duration", type=Duration(), metavar="TIME")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def snooze(*, given: GivenTarget, name: str, duration: float, as_json: bool) -> None:
    """Hear no more of a group for a while: 500ms, 30m, 2d. Its letters stay where they are. 0s ends it."""
    chosen, store = given.in_store()
    group = _group(chosen, store, name)
    until = time.time() + duration if duration else None
    _tell_group(group, store.change_group(group, by=operator(), snoozed_until=until), as_json=as_json)


@click.command(
    "resolve",
    epilog="\b\nExamples:\n"
    "  unpoison dlq resolve group:3f9a --version 1.4.2 --app shop:app\n"
    "  unpoison dlq resolve group:3f9a --reopen --app shop:app",
)
@click.argument("name", metavar="group:FINGERPRINT", shell_complete=complete_group)
@target_options
@click.option("--version", metavar="VERSION", help="The first version of the code that no longer fails so.")
@click.option("--reopen", is_flag=True, help="It is not resolved.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def resolve(*, given: GivenTarget, name: str, version: str | None, reopen: bool, as_json: bool) -> None:
    """Say in which version of the code a group is resolved. A letter of a newer version makes it regressed."""
    if (version is None) != reopen:
        raise click.UsageError("Give the version in which it is resolved: --version VERSION. To say that it is not: --reopen")
    chosen, store = given.in_store()
    group = _group(chosen, store, name)
    _tell_group(group, store.change_group(group, by=operator(), resolved_in=version), as_json=as_json)


@click.command(
    "restore",
    epilog="\b\nExamples:\n"
    "  unpoison dlq restore orders-12 --app shop:app\n"
    "  unpoison dlq restore --where 'state:discarded age<1d' --app shop:app",
)
@click.argument("letter_ids", metavar="[ID]...", nargs=-1)
@target_options
@where_option("Every letter that matches and was discarded.")
@click.option("--json", "as_json", is_flag=True, help='Print {"restored": [ids]}.')
def restore(*, given: GivenTarget, letter_ids: Sequence[str], where: Filter | None, as_json: bool) -> None:
    """Let discarded letters wait again. One that was replayed can be named by its id: then it can be sent a second time."""
    if bool(letter_ids) == (where is not None):
        raise click.UsageError("Give the ids of the letters to restore, or --where FILTER.")
    chosen, _ = given.in_store()
    restored: list[str] = []
    for dlq, state, ids in _meant(chosen, letter_ids, where):
        restored += dlq.letters.remove(ids, state=state, keep_as="dead")
    if as_json:
        print_json({"restored": restored})
    elif restored:
        click.echo(f"Restored {counted(len(restored), 'dead letter')}: they wait again.")
    else:
        click.echo("Nothing was restored: no such letter was discarded or replayed.")


def _meant(chosen: Target, letter_ids: Sequence[str], where: Filter | None) -> Iterator[tuple[DLQ, str, Sequence[str]]]:
    """Ids by DLQ and state."""
    if where is not None:
        yield from ((dlq, "discarded", dlq.manager.select(where, "discarded").ids) for dlq in chosen.dlqs)
        return
    for dlq, letters in chosen.find_all(letter_ids):
        for state in ("discarded", "replayed"):
            yield dlq, state, [letter.id for letter in letters if letter.state == state]
