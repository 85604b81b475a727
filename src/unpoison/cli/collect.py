"""`unpoison collect` and `unpoison audit`: dead letters move into the store, and who has changed what there."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from itertools import islice
from types import FrameType

import click
from rich.table import Table

from unpoison.brokers import dead_letters_for, foreign_dlq, sources_for, url_with_dlq
from unpoison.cli.input_output import print_json, print_json_array
from unpoison.cli.screen import console, progress
from unpoison.cli.target import Fleet, dlq_options, fleet, fleet_options
from unpoison.errors import ConfigError, UnpoisonError
from unpoison.model.wording import counted, one_line
from unpoison.port.broker import DeadLetters, close
from unpoison.port.broker_url import dlqs_of
from unpoison.store.choice import check_collects
from unpoison.store.letters.collector import Collected, Collector
from unpoison.store.letters.expiry import Expiry
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.redacting import REVEALED
from unpoison.store.letters.rules_in_force import RULES, check_redacts
from unpoison.store.letters.sql_letters import letters_for
from unpoison.store.letters.values import DELETED, AuditEntry

EVERY = 2.0
"""Seconds between two looks at the DLQs."""
INDEX_FOR = 10.0
"""Seconds that are spent on the index of texts after each look."""
READ_AT_ONCE = 500
"""Entries of the audit log."""
PAUSE = 60.0
"""Seconds between two entries, from which on they are of two commands."""


@click.command(
    "collect",
    epilog="\b\nExamples:\n"
    "  unpoison collect --app shop:app --once\n"
    "  unpoison collect --url amqp://mq/shop --store postgresql://db/shop\n"
    "  unpoison collect --url kafka://kafka:9092 --dlq orders.DLT --store …",
)
@fleet_options
@click.option("--source", metavar="NAME", help="The source.  [default: all sources of the app or the broker]")
@dlq_options
@click.option("--expire", metavar="FILTER", help="Delete letters from the store that match: 'age>90d -state:dead'.")
@click.option(
    "--redact",
    multiple=True,
    metavar="RULE",
    help="What must not stand in the store: body.customer.email, pattern:card.  [default: those of the app, and UNPOISON_REDACT]",
)
@click.option("--once", is_flag=True, help="End when the DLQs are empty, instead of watching them.")
@click.option("--json", "as_json", is_flag=True, help='With --once: print {"SOURCE": {"new": N, "known": N, …}}.')
def collect(
    source: str | None,
    dlq: str | None,
    accept: tuple[str, ...],
    *,
    expire: str | None,
    redact: Sequence[str],
    once: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """Move dead letters from the DLQs of a broker into the store.

    Each is stored first and then taken from its DLQ, so none is lost however this ends. Until Ctrl-C it goes on as letters come;
    consumers of an app with collect=True do the same by themselves. To work on them: unpoison dlq, with --store or such an app.

    With --dlq and no --source the letters of any DLQ are moved, each under the source that it came from.
    """
    if as_json and not once:
        raise click.UsageError("--json prints what was moved in the end. Add --once.")
    chosen = fleet(given["app"], given["url"], given["store"])
    check_collects(chosen.url, chosen.store)
    old = Expiry(expire)
    if source and dlq:
        chosen = chosen._replace(url=url_with_dlq(chosen.url, source, dlq))
    sources = [source or dlq] if source or dlq else list(chosen.consumed) or list(sources_for(chosen.url))
    if not sources:
        raise click.ClickException("There is nothing to collect: unpoison has not been used with any source there.")
    rules = [*chosen.redact, *redact]
    check_redacts(rules)
    with ExitStack() as opened, closing(letters_for(chosen.store, rules)) as letters:
        letters.open()
        with progress("Grouping anew") as advance:
            letters.regroup(advance)
        if dlq and not source:
            collectors = {dlq: _collector(foreign_dlq(chosen.url, dlq, accept), dlq, dlq, letters, opened)}
        else:
            collectors = {name: _of_source(chosen, name, letters, opened) for name in sources if name}
        found = _collect_all(collectors)
        deleted = old.look(letters)
        letters.index_text(INDEX_FOR)
        _tell(found, as_json=as_json)
        if deleted and not as_json:
            click.echo(f"Deleted {counted(deleted, 'dead letter')} that matched {one_line(str(expire))}.")
        if not once:
            _watch(collectors, letters, old)


def _of_source(chosen: Fleet, source: str, store: LetterStore, opened: ExitStack) -> Collector:
    native = dead_letters_for(chosen.url, source, create=source in chosen.consumed)
    return _collector(native, source, dlqs_of(chosen.url).get(source, ""), store, opened)


def _collector(native: DeadLetters, source: str, place: str, store: LetterStore, opened: ExitStack) -> Collector:
    opened.callback(close, native)
    return Collector(native, store, source, place)


def _collect_all(collectors: dict[str, Collector]) -> dict[str, Collected]:
    found: dict[str, Collected] = {}
    for source, collector in collectors.items():
        with progress(f"Collecting {one_line(source)}") as advance:
            found[source] = collector.collect(advance)
    return found


def _tell(found: dict[str, Collected], *, as_json: bool) -> None:
    if as_json:
        print_json({source: collected._asdict() for source, collected in found.items()})
        return
    for source, collected in found.items():
        click.echo(f"{one_line(source)}: {_said(collected)}")


def _said(collected: Collected) -> str:
    said = [f"{counted(collected.moved, 'dead letter')} moved into the store"]
    if collected.known:
        said.append(f"{collected.known:,} of them were there already")
    if collected.duplicates:
        said.append(f"{collected.duplicates:,} may be duplicates and are marked")
    if collected.left:
        said.append(f"{collected.left:,} left in the DLQ: the store cannot keep them")
    return "; ".join(said) + "."


def _watch(collectors: dict[str, Collector], store: LetterStore, old: Expiry) -> None:
    """Until Ctrl-C or SIGTERM. What is wrong for a while is said once, and tried again."""
    click.echo("Watching for more. Ctrl-C ends it.", err=True)
    stopped, said = threading.Event(), ""

    def stop(_: int, __: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not stopped.wait(EVERY):
            try:
                found = {source: each.collect(wanted=lambda: not stopped.is_set()) for source, each in collectors.items()}
                old.look(store)
                store.index_text(INDEX_FOR)
            except UnpoisonError as error:
                if isinstance(error, ConfigError):
                    raise
                if str(error) != said:
                    click.echo(f"Letters stay in the DLQ for now, and none is lost: {error}", err=True)
                said = str(error)
                continue
            said = ""
            _tell({source: collected for source, collected in found.items() if collected.moved}, as_json=False)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command(
    "audit",
    epilog="\b\nExamples:\n"
    "  unpoison audit --app shop:app\n"
    "  unpoison audit --url amqp://mq/shop --store postgresql://db/shop --json",
)
@fleet_options
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="Show the last N entries.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, the latest entry first.")
def audit(app: str | None, url: str | None, store: str | None, limit: int, as_json: bool) -> None:
    """Show who has changed which letters and groups in the store, the latest first. Entries are never changed or removed."""
    chosen = fleet(app, url, store)
    check_collects(chosen.url, chosen.store)
    with closing(letters_for(chosen.store)) as letters:
        letters.open(create=False)
        entries = letters.audit(limit=limit) if as_json else list(islice(_changes(letters), limit))
    if as_json:
        print_json_array(entry._asdict() | {"at": _at(entry)} for entry in entries)
    elif entries:
        console().print(_table(entries))
    else:
        click.echo("Nothing has been changed in this store.")


def _changes(store: LetterStore) -> Iterator[AuditEntry]:
    """What a command has done, in one entry. The store writes one for each of its transactions, and those are short: thousands
    for a replay of 40,000 letters."""
    shown = earliest = None
    for entry in _entries(store):
        if shown is not None and earliest is not None and _is_one_change(entry, earliest):
            shown = shown._replace(letters=shown.letters + entry.letters)
        else:
            if shown is not None:
                yield shown
            shown = entry
        earliest = entry
    if shown is not None:
        yield shown


def _entries(store: LetterStore) -> Iterator[AuditEntry]:
    """All of them, the latest first."""
    before: int | None = None
    while page := store.audit(before=before, limit=READ_AT_ONCE):
        yield from page
        before = page[-1].number


def _is_one_change(entry: AuditEntry, later: AuditEntry) -> bool:
    same = (entry.who, entry.what, entry.about, entry.after) == (later.who, later.what, later.about, later.after)
    return same and bool(entry.letters) and later.at - entry.at < PAUSE


def _at(entry: AuditEntry) -> str:
    return datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="seconds")


def _table(entries: Sequence[AuditEntry]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("WHEN", "WHO", "WHAT", "LETTERS", "WHICH"):
        table.add_column(name, justify="right" if name == "LETTERS" else "left", overflow="fold")
    for entry in entries:
        count = f"{entry.letters:,}" if entry.letters else ""
        about = entry.about if entry.letters or entry.what == RULES else f"group:{entry.about}"
        table.add_row(_when(entry.at), *map(one_line, (entry.who, _what(entry), count, about)))
    return table


def _when(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


def _what(entry: AuditEntry) -> str:
    """As in: state to replayed; purged; owner to ann; resolved in 1.4.2."""
    if entry.what == DELETED:
        return str(entry.after or DELETED)
    if entry.what == REVEALED:
        return f"{REVEALED}: {entry.after}"
    if not isinstance(entry.after, list):
        return f"{entry.what} removed" if entry.after is None else f"{entry.what} to {entry.after}"
    return ", ".join(_of_group(*pair) for pair in entry.after if isinstance(pair, list) and len(pair) == 2) or entry.what


def _of_group(name: object, value: object) -> str:
    if name == "rules" and isinstance(value, list):
        return f"{RULES}: {', '.join(map(str, value)) or 'none'}"
    if name == "snoozed_until":
        return f"snoozed until {_when(value)}" if isinstance(value, int | float) else "no longer snoozed"
    if name == "resolved_in" and value is None:
        return "reopened"
    if name in ("resolved_in", "regressed_in"):
        return f"{str(name).replace('_', ' ')} {value}"
    return f"{name} removed" if value is None else f"{name} to {value}"
