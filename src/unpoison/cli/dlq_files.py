"""`unpoison dlq export` and `import`: letters of a store as lines of a file, and back."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import BinaryIO

import click
import msgspec

from unpoison.cli.completion import where_option
from unpoison.cli.input_output import print_json
from unpoison.cli.screen import progress
from unpoison.cli.target import GivenTarget, fleet, fleet_options, target_options
from unpoison.errors import OriginalUnavailable, PayloadError
from unpoison.filters.filter import Filter
from unpoison.filters.terms import And, Or, Term
from unpoison.model.dead_letter import WholeLetter
from unpoison.model.wording import counted
from unpoison.port.broker import WHOLE_BYTES
from unpoison.store.choice import check_collects
from unpoison.store.letters.export import letter_of, line_of
from unpoison.store.letters.people import operator
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.scopes import scope_of
from unpoison.store.letters.sql_letters import letters_for
from unpoison.store.letters.values import Ingested, Order, Position, StoredLetter

PAGE = 250


@click.command(
    "export",
    epilog="\b\nExamples:\n"
    "  unpoison dlq export --app shop:app > letters.jsonl\n"
    "  unpoison dlq export --where 'age>30d' --app shop:app > old.jsonl",
)
@target_options
@where_option("Only letters that match, whatever their state.")
@click.option("--originals", is_flag=True, help="Write redacted letters as they were. Needs --reason.")
@click.option("--reason", metavar="TEXT", help="With --originals: why, for the audit log.")
def export(*, given: GivenTarget, where: Filter | None, originals: bool, reason: str | None) -> None:
    """Write letters of the store to standard output, one JSON object a line, with bodies, notes and states.

    `unpoison dlq import` makes the same letters of it, in this store or another one. Redacted letters stay redacted, with their
    originals encrypted.
    """
    if sys.stdout.isatty():
        raise click.UsageError("Letters are written for a file or another program. Add > letters.jsonl")
    if originals != bool(reason and reason.strip()):
        raise click.UsageError("--originals and --reason TEXT belong together: the audit log says who saw originals, and why.")
    chosen, store = given.in_store()
    for dlq in chosen.dlqs:
        dlq.letters.freeze()  # what lies in the DLQ is collected
    count, lost = 0, 0
    scopes = [scope_of(dlq.letters, dlq.source) for dlq in chosen.dlqs]
    meant = _meant([scope.term(store) for scope in scopes], where)
    if originals:
        store.redaction.note_revealed(store.told(meant), store.count(meant), operator(), reason or "")
    with progress("Exporting") as advance:
        total = sum(sum(scope.counts(store).values()) for scope in scopes)
        for letter in _letters(store, meant):
            if any(scope.has(letter) for scope in scopes):
                written = _original(store, letter) if originals else store.redaction.sealed(letter)
                sys.stdout.buffer.write(line_of(written))
                count, lost = count + 1, lost + (originals and written.letter.redaction is not None)
            if advance:
                advance(count, total)
        sys.stdout.buffer.flush()
    click.echo(f"{counted(count, 'dead letter')} written.", err=True)
    if lost:
        click.echo(f"{lost:,} of them redacted: their originals are not kept, or cannot be decrypted here.", err=True)


def _original(store: LetterStore, stored: StoredLetter) -> StoredLetter:
    """As it was, where that is known."""
    try:
        whole = store.original(stored)
    except OriginalUnavailable:
        return store.redaction.sealed(stored)
    return msgspec.structs.replace(stored, letter=whole.letter, headers=whole.headers, native=whole.native)


def _meant(terms: Sequence[Term], where: Filter | None) -> Filter:
    term = terms[0] if len(terms) == 1 else Or(tuple(terms))
    return Filter(term if where is None else And((term, where.term)))


def _letters(store: LetterStore, where: Filter) -> Iterator[StoredLetter]:
    position: Position | None = None
    while True:
        page = store.page(where, order=Order.ARRIVAL, is_descending=False, after=position, limit=PAGE)
        yield from page.letters
        if (position := page.next) is None:
            return


@click.command(
    "import",
    epilog="\b\nExamples:\n"
    "  unpoison dlq import letters.jsonl --app shop:app\n"
    "  cat *.jsonl | unpoison dlq import - --app shop:app",
)
@click.argument("file", type=click.File("rb", lazy=True), metavar="FILE")
@fleet_options
@click.option("--json", "as_json", is_flag=True, help='Print {"new": N, "known": N}.')
def import_letters(file: BinaryIO, app: str | None, url: str | None, store: str | None, as_json: bool) -> None:
    """Put letters that were exported into the store. FILE is - for standard input.

    A letter that the store has already is left as it is, so a file can be imported again. Nothing is sent: to do that, replay.
    """
    chosen = fleet(app, url, store)
    check_collects(chosen.url, chosen.store)
    total = Ingested()
    with closing(letters_for(chosen.store, chosen.redact)) as letters, progress("Importing") as advance:
        letters.open()
        for part in _parts(_read(file)):
            found = letters.put(part)
            total = Ingested(*(one + other for one, other in zip(total, found, strict=True)))
            if advance:
                advance(total.new + total.known, 0)
    if as_json:
        print_json({"new": total.new, "known": total.known})
    else:
        click.echo(f"{counted(total.new, 'dead letter')} imported, {total.known:,} were there already.")


def _read(file: BinaryIO) -> Iterator[WholeLetter]:
    for number in itertools.count(1):
        line = file.readline()
        if not line:
            return
        if line.strip():
            try:
                yield letter_of(line)
            except PayloadError as error:
                raise click.ClickException(f"Line {number:,}: {error} The lines before it may be imported.") from None


def _parts(letters: Iterator[WholeLetter]) -> Iterator[list[WholeLetter]]:
    """As many at a time as fit into memory."""
    part: list[WholeLetter] = []
    size = 0
    for each in letters:
        part.append(each)
        size += len(each.letter.body)
        if len(part) == PAGE or size > WHOLE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
