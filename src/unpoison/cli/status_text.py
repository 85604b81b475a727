"""How does `unpoison status` look: one table, then what a person must know, then the consumers.

Sentences about pauses and outages are shared with `unpoison pause` and `unpoison resume`.
"""

import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unpoison.cli.fleet import STORE_EXAMPLE
from unpoison.cli.screen import GAP, age, ago, moment
from unpoison.cli.source_status import SourceStatus
from unpoison.cli.status_rates import SourceRates
from unpoison.control.admission import TooManyDead
from unpoison.control.evidence import Evidence
from unpoison.model.wording import counted, one_line
from unpoison.planning import lasting
from unpoison.port.broker_url import HIDDEN
from unpoison.reporting.control_lines import explained
from unpoison.store.port import OPERATOR, PAUSING, ConsumerSign, Pause, SharedCircuit

WIDEST = 110
"""Longer lines are hard to read, however wide the screen is."""
MOST_CONSUMERS = 50
NEEDS_STORE = (
    f"Pauses, outages and consumers are not known here: that needs a store that all consumers share, as in {STORE_EXAMPLE}."
)
UNKNOWN, NONE = "unknown", "–"
SECRET_LEFT_OUT = f"  # {HIDDEN} is the password"

_COLOURS = {"paused": "bold yellow", "outage": "bold red", "no consumer": "yellow", "running": "green"}
_LOUD, _BAD, _PLAIN = "bold red", "yellow", ""


def show(screen: Console, found: Sequence[SourceStatus], named: str) -> None:
    """`named` are the options that another command needs to name the same fleet."""
    table, *others = page(found, screen.width, named, wraps=screen.is_terminal)
    screen.print(table)
    for each in others:
        screen.print(each, soft_wrap=isinstance(each, Text))


def page(
    found: Sequence[SourceStatus],
    width: int,
    named: str,
    *,
    wraps: bool = True,
    rates: Mapping[str, SourceRates] | None = None,
    more: Sequence[Table | Text] = (),
) -> Iterator[Table | Text]:
    """What is printed, piece by piece. Not wrapped, each text is one line. `more` stands above the consumers."""
    yield _table(found, width, rates)
    told = [paragraph for status in found for paragraph in _paragraphs(status, named)]
    for each in (*_problems(found), *told, *_kept(found)):
        text = one_line(each.text)
        yield Text("\n" + _wrapped(text, min(width, WIDEST) if wraps else len(text) + GAP), style=each.style)
        if each.command:  # on a line of its own, to be copied
            yield Text(f"      {each.command}", style="cyan")
    yield from more
    consumers = [each for status in found if status.store is not None for each in status.store.consumers]
    if consumers:
        yield Text()
        yield _consumers(consumers[:MOST_CONSUMERS], found[0].now)


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, subsequent_indent=" " * GAP, break_on_hyphens=False, break_long_words=False)


# The table


def _table(found: Sequence[SourceStatus], width: int, rates: Mapping[str, SourceRates] | None = None) -> Table | Text:
    rows = [_row(status) | ({} if rates is None else _rate_cells(rates[status.source])) for status in found]
    titles = next((each for each in _fitting(list(rows[0])) if _needed(each, rows) <= width), None) if rows else list(_TITLES)
    if titles is None:
        return Text("\n").join(_line(row) for row in rows)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True, justify="left" if title in ("SOURCE", "STATE") else "right")
    for row in rows:
        table.add_row(*(row[title] for title in titles))
    return table


def _needed(titles: Sequence[str], rows: Sequence[Mapping[str, Text]]) -> int:
    return sum(max(map(cell_len, (title, *(row[title].plain for row in rows)))) + GAP for title in titles) - GAP


def _fitting(titles: Sequence[str]) -> Iterator[Sequence[str]]:
    """The columns, and the same without those that can be spared beside rates."""
    yield titles
    if "DONE/S" in titles:
        yield [title for title in titles if title not in ("NET/S", "DELAYED", "OLDEST")]


def _rate_cells(rates: SourceRates) -> dict[str, Text]:
    cells = [Text(_rate(each)) for each in rates[:3]]
    for cell, value, style in zip(cells[1:], rates[1:3], ("yellow", "red"), strict=True):
        cell.stylize(style if value else "")
    net = Text(NONE if rates.net is None else f"{'+' if rates.net > 0 else ''}{_rate(rates.net)}")
    return dict(zip(("DONE/S", "FAILED/S", "DEAD/S", "NET/S"), (*cells, net), strict=True))


def _rate(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value == 0 or abs(value) >= 10 else f"{value:.1f}"


_TITLES = ("SOURCE", "STATE", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST")


def _row(status: SourceStatus) -> dict[str, Text]:
    depth = None if status.broker is None else status.broker.depth
    counts = (None,) * 4 if depth is None else (depth.ready, depth.delayed, depth.leased, status.dead)
    cells = [Text(UNKNOWN if count is None else f"{count:,}") for count in counts]
    if status.dead:
        cells[-1].stylize("red")
    oldest = Text(_oldest(status), style="bold red" if status.deleted_in is not None else "")
    return dict(zip(_TITLES, (Text(one_line(status.source)), _state(status), *cells, oldest), strict=True))


def _state(status: SourceStatus) -> Text:
    state = Text(status.state, style=_COLOURS.get(status.state, "dim"))
    circuits = () if status.store is None or status.is_outage else status.store.circuits
    return state.append(f", {counted(len(circuits), 'outage')}", style="bold red") if circuits else state


def _oldest(status: SourceStatus) -> str:
    if status.broker is None or (status.broker.oldest is None and status.ready):
        return UNKNOWN
    return NONE if status.broker.oldest is None else age(status.broker.oldest)


def _line(row: Mapping[str, Text]) -> Text:
    """A row where the screen is too narrow for the table."""
    source, state, *counts = (row[title] for title in _TITLES)
    numbers = ", ".join(f"{count.plain} {title.lower()}" for title, count in zip(_TITLES[2:-1], counts, strict=False))
    said = Text.assemble(source, ": ", state, f"\n{' ' * GAP}{numbers}, oldest {counts[-1].plain}")
    rates = ", ".join(f"{cell.plain} {title.lower()}" for title, cell in row.items() if title not in _TITLES)
    return Text.assemble(said, f"\n{' ' * GAP}{rates}") if rates else said


# What a person must know


class Paragraph(NamedTuple):
    style: str
    text: str
    command: str = ""


def _problems(found: Sequence[SourceStatus]) -> Iterator[Paragraph]:
    """Why the broker says nothing about a source. Sources with the same problem share a line."""
    sources = defaultdict(list)
    for status in found:
        if status.problem:
            sources[status.problem].append(repr(status.source))
    for problem, names in sources.items():
        yield Paragraph(_BAD, f"{', '.join(names)}: {problem}")


def _paragraphs(status: SourceStatus, named: str) -> Iterator[Paragraph]:
    if status.broker is not None and status.broker.deleted_after is not None and status.deleted_in is not None:
        yield Paragraph(_LOUD, _warning(status, status.broker.oldest, status.broker.deleted_after, status.deleted_in))
    if status.store is None:
        return
    for place, pause in enumerate(sorted(status.store.pauses, key=lambda each: each.kind != OPERATOR)):
        said = _paused(pause, status.now, holds=status.holds(pause))
        if place == 0:
            yield Paragraph(_BAD, said, resume_command(pause.source, named))
        else:
            said = said.partition(" Meanwhile ")[0].removesuffix(" To resume it now:")
            yield Paragraph(_BAD, f"{said} The command above ends this pause too.")
    for circuit in status.store.circuits:
        yield _recovering(status, circuit) if status.is_recovering(circuit) else _down(status, circuit)
    depth = None if status.broker is None else status.broker.depth
    if depth is not None and not status.store.consumers and (waiting := depth.ready + depth.delayed):
        wait = f"{counted(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}"
        yield Paragraph(_BAD, f"{status.source!r}: no consumer that has this store is alive, and {wait}.")


def _warning(status: SourceStatus, oldest: float | None, limit: float, left: float) -> str:
    when = f"in {lasting(left, 2)}" if left else "now"
    if oldest is not None:
        told = f"the oldest has waited for {lasting(oldest, 2)}. It is deleted {when}"
    else:
        told = f"{status.source!r} has been paused for {lasting(status.paused_for, 2)}. What waits since then is deleted {when}"
    return (
        f"WARNING: the broker deletes messages of {status.source!r} {lasting(limit, 2)} after their publish, and {told}; only a "
        f"RabbitMQ queue that unpoison made keeps it, as a dead letter. Have it consumed before that, or raise the time at the "
        f"broker."
    )


def said_by(pause: Pause, now: float) -> str:
    """By whom and since when."""
    version = f" (version {one_line(pause.code_version)})" if pause.code_version else ""
    who = one_line(pause.by) if pause.kind == OPERATOR else f"consumer {one_line(pause.by)}"
    return f"{who}{version} since {moment(pause.since)} ({ago(now - pause.since)})"


def _paused(pause: Pause, now: float, *, holds: bool) -> str:
    """All about a pause that lasts, up to the command that ends it. `holds`: it stops the source, and not only old consumers."""
    said = f"{pause.source!r} is paused by {said_by(pause, now)}"
    if not holds:
        which = "without a version" if pause.code_version is None else f"with version {one_line(pause.code_version)}"
        others = f"consumers {which} are paused, those with another one go on"
        said = f"{pause.source!r}: {others}. It was paused by {said_by(pause, now)}"
    if pause.kind == OPERATOR:
        return f"{said}: {pause.reason.rstrip('.')}. Nothing starts until someone runs:"
    letters = _letters(pause)
    why = f". {pause.reason}" if letters is None else explained(pause.source, letters, now)
    return f"{said}{why.partition(' To resume it now:')[0]} To resume it now:"


def pause_ended(pause: Pause, now: float) -> str:
    """The same of a pause that is over."""
    if pause.kind == OPERATOR:
        return f"by {said_by(pause, now)}: {one_line(pause.reason)}"
    letters = _letters(pause)
    counts = "" if letters is None else f": of {counted(letters.ended, 'message')}, {letters.dead} were to become dead letters"
    samples = "" if letters is None or not letters.samples else f" ({'; '.join(letters.samples)})"
    return one_line(f"because of too many dead letters, by {said_by(pause, now)}{counts}{samples}")


def _letters(pause: Pause) -> TooManyDead | None:
    try:
        return msgspec.convert({"since": pause.since, **pause.evidence}, TooManyDead)
    except msgspec.ValidationError:  # anything may stand in a database
        return None


def resume_command(source: str, named: str) -> str:
    """To be copied. A password is not shown, so it must be written in."""
    return f"unpoison resume {shlex.quote(one_line(source))}{named}{SECRET_LEFT_OUT if HIDDEN in named else ''}"


def outage_words(circuit: SharedCircuit, now: float) -> str:
    """What is down, since when, and how that is known."""
    evidence = Evidence(circuit.dependency, circuit.since, circuit.messages, circuit.samples, circuit.is_named)
    return one_line(f"{evidence.problem} since {_since(circuit, now)}. {_failed(circuit)}.")


def outage_ended(circuit: SharedCircuit, now: float) -> str:
    """The same of an outage that is over."""
    return one_line(f"of {circuit.dependency} since {_since(circuit, now)}: {_failed(circuit)}")


def _since(circuit: SharedCircuit, now: float) -> str:
    return f"{moment(circuit.since)} ({ago(now - circuit.since)})"


def _failed(circuit: SharedCircuit) -> str:
    samples = f" ({'; '.join(circuit.samples)})" if circuit.samples else ""
    return f"{counted(circuit.messages, 'different message')} failed on it{samples}"


def _recovering(status: SourceStatus, circuit: SharedCircuit) -> Paragraph:
    begins = "a probe has succeeded, and messages start again, slowly at first. Once enough of them have succeeded, that ends"
    return Paragraph(_BAD, f"{circuit.source!r}: {begins} the outage {outage_ended(circuit, status.now)}.")


def _down(status: SourceStatus, circuit: SharedCircuit) -> Paragraph:
    return Paragraph(_LOUD, f"{circuit.source!r}: {outage_words(circuit, status.now)} {_meaning(status, circuit)}")


def _meaning(status: SourceStatus, circuit: SharedCircuit) -> str:
    if status.is_held:
        return "While a person has paused the source, nothing is tried, and no message is charged."
    if status.store is None or not status.store.consumers:
        return "No consumer is alive that could try whether it works again."
    others = (
        "Hardly anything else succeeds, so nothing but probes starts, and no message is charged."
        if circuit.state == PAUSING
        else "Messages that fail on it wait and are not charged; the others go on."
    )
    due = circuit.due_in(status.now)
    return f"{others} The next probe is due {f'in {age(due)}' if due >= 1 else 'now'}; one that succeeds ends the outage."


def _kept(found: Sequence[SourceStatus]) -> Iterator[Paragraph]:
    """For how long waiting messages are kept. Sources with one setting share a line."""
    sources = defaultdict(list)
    for status in found:
        if status.broker is not None and status.broker.deleted_after is not None:
            sources[status.broker.deleted_after].append(status.source)
    for limit, names in sources.items():
        yield Paragraph(
            _PLAIN, f"The broker deletes waiting messages {lasting(limit, 2)} after their publish: {', '.join(names)}"
        )


# The consumers


def _consumers(consumers: Sequence[ConsumerSign], now: float) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
    for title in ("CONSUMER", "SOURCE", "VERSION", "STATE", "SEEN", "STARTED"):
        table.add_column(title, overflow="fold")
    for each in consumers:
        version = NONE if each.code_version is None else one_line(each.code_version)
        times = (ago(now - each.seen_at), ago(now - each.started_at))
        table.add_row(*map(Text, (one_line(each.consumer), one_line(each.source), version, one_line(each.state), *times)))
    return table
