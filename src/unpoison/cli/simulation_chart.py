"""What the pictures of a simulation show: the rows, labels and notes that the terminal and the SVG both draw."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from unpoison.cli.bars import FEWEST, GAP, notes, room_for_bars, sparks, table
from unpoison.model.wording import counted, one_line
from unpoison.planning import lasting, number, percent
from unpoison.simulation.ledger import Told
from unpoison.simulation.run import Outcome, alike
from unpoison.simulation.scenario import BEFORE, Kind, Scenario
from unpoison.simulation.trouble import dependency_of

MOST_TOLD = 6


class Simulated(NamedTuple):
    """One consumer, or the settings given as options (then `source` is None), in one scenario. Outcomes are equally long."""

    source: str | None
    scenario: Scenario
    outcomes: Sequence[Outcome]

    @property
    def dependency(self) -> str:
        return dependency_of(self.scenario, self.outcomes[0].variant)

    @property
    def seconds(self) -> int:
        return len(self.outcomes[0].calls)


def simulated(source: str | None, scenario: Scenario, outcomes: Sequence[Outcome]) -> Simulated:
    return Simulated(source, scenario, alike(scenario, outcomes))


class Fate(NamedTuple):
    """What became of the messages in one variant."""

    name: str
    dead: str
    charged: str
    put_off: str
    probes: str
    caught_up: str


FATE_HEADER = ("", "dead letters", "charged", "put off", "probes", "caught up")


def headline(shown: Simulated) -> str:
    scenario, what = shown.scenario, one_line(shown.dependency)
    rate, lasts, share = f"{number(scenario.rate)} msg/s", lasting(scenario.length), percent(scenario.share)
    match scenario.kind:
        case Kind.OUTAGE:
            return f"{rate}, and {what} is down for {lasts}"
        case Kind.PARTIAL_OUTAGE:
            return f"{rate}, {share} of them need {what}, which is down for {lasts}"
        case Kind.THROTTLING:
            return f"{rate}, and {what} takes {share} of them for {lasts}"
        case Kind.BAD_DEPLOY:
            return f"{rate}, and every message fails for {lasts} after a bad deploy"
        case Kind.POISON:
            return f"{rate}, {share} of them fail at every attempt, for {lasts}"


def fates(shown: Simulated) -> list[Fate]:
    return [
        Fate(
            each.variant.name,
            f"{each.dead:,.0f}",
            f"{each.most_charged}",
            f"{each.most_put_off}",
            f"{each.probes:,}",
            _caught_up(each),
        )
        for each in shown.outcomes
    ]


def _caught_up(outcome: Outcome) -> str:
    if outcome.caught_up is None:
        return f"{outcome.left:,.0f} left"
    return lasting(outcome.caught_up, 2) if outcome.caught_up else "at once"


def fate_notes(shown: Simulated) -> list[str]:
    found = [
        "charged: attempts that count, of the message that has most.",
        "put off: how often a message was put back uncharged, of the one put back most;",
        "on RabbitMQ and SQS each time is a copy.",
    ]
    if shown.scenario.kind is not Kind.POISON:
        found.append("caught up: time from the end until no more messages wait than usual.")
    found.append(f"The workers can handle {number(shown.scenario.capacity)} msg/s.")
    sampled = [each for each in shown.outcomes if each.weight > 1]
    found += [f"{each.variant.name}: one message in {number(each.weight)} is simulated." for each in sampled]
    return found


class Course(NamedTuple):
    """How something went over time in one variant. `cells` are the figures before the chart."""

    name: str
    cells: tuple[str, ...]
    series: Sequence[float]


class Courses(NamedTuple):
    """The same of all variants, in one scale."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[Course]


def courses(shown: Simulated) -> list[Courses]:
    is_handler = shown.scenario.kind in (Kind.BAD_DEPLOY, Kind.POISON)
    calls = "Starts of the handler" if is_handler else f"Calls of {one_line(shown.dependency)}"
    loads = [Course(each.variant.name, _load(each), each.calls) for each in shown.outcomes]
    backlogs = [Course(each.variant.name, (f"{max(each.waiting):,.0f}",), each.waiting) for each in shown.outcomes]
    return [
        Courses(calls, ("meanwhile", "of traffic", "most in 1 s"), loads),
        Courses("Messages that wait", ("at most",), backlogs),
    ]


def _load(outcome: Outcome) -> tuple[str, ...]:
    return f"{outcome.calls_meanwhile:,.0f}", percent(outcome.times_the_traffic), f"{outcome.peak:,.0f}"


def binned(series: Sequence[float], bins: int) -> list[float]:
    """The mean of each of so many equal parts."""
    edges = [round(at * len(series) / bins) for at in range(bins + 1)]
    parts = [series[begin : max(begin + 1, end)] for begin, end in pairwise(edges)]
    return [sum(part) / len(part) for part in parts]


def span(shown: Simulated) -> tuple[float, float]:
    """Where on the time axis, from 0 to 1, the trouble begins and ends."""
    return BEFORE / shown.seconds, min(1.0, shown.scenario.ends / shown.seconds)


TROUBLE = {
    Kind.OUTAGE: "down",
    Kind.PARTIAL_OUTAGE: "down",
    Kind.THROTTLING: "throttled",
    Kind.BAD_DEPLOY: "deployed",
    Kind.POISON: "poison",
}


def told(shown: Simulated) -> list[Told]:
    """What the state machines of the first variant decided, without what comes again and again."""
    found: dict[str, Told] = {}
    for each in shown.outcomes[0].told:
        found.setdefault(f"{each.event} {_first_sentence(each.text)}" if each.event != "throttled" else each.event, each)
    return list(found.values())[:MOST_TOLD]


def told_lines(shown: Simulated) -> list[tuple[str, str]]:
    return [(_moment(each.at), _first_sentence(each.text)) for each in told(shown)]


def told_title(shown: Simulated) -> str:
    outcome = shown.outcomes[0]
    return f"What the consumer says ({outcome.variant.name}): {counted(outcome.changes, 'decision')}"


def _moment(at: float) -> str:
    return f"{'+' if at >= 0 else '-'}{lasting(abs(at))}"


def _first_sentence(text: str) -> str:
    """Of a log line; brackets may hold anything, so they are left out."""
    sentence = text.partition(". ")[0].partition(" (")[0]
    return sentence.rstrip(".") + "."


# How does a simulation look in a terminal?


def chart(shown: Simulated, width: int) -> RenderableType:
    """Everything about one consumer."""
    parts: list[RenderableType] = []
    if shown.source is not None:
        parts.append(Text(one_line(shown.source), style="bold"))
    parts += [Text(headline(shown), style="bold"), Text(), _fates(fates(shown), width)]
    parts += notes(fate_notes(shown))
    parts += _courses(shown, width)
    if shown.outcomes[0].changes:
        parts += [Text(), Text(told_title(shown), style="bold"), *_told(shown)]
    return Group(*parts)


def _fates(rows: Sequence[Fate], width: int) -> RenderableType:
    """A table, or where the screen is too narrow for it a few words a row: a figure that is cut off would be a wrong one."""
    needed = sum(max(map(len, column)) + GAP for column in zip(FATE_HEADER, *rows, strict=True)) - GAP
    if needed <= width:
        return table(FATE_HEADER, rows, [Text()] * len(rows))
    told = (zip(FATE_HEADER[1:], row[1:], strict=True) for row in rows)
    return Text("\n").join(
        Text(f"{row.name}\n{' ' * GAP}" + ", ".join(f"{name} {figure}" for name, figure in pairs))
        for row, pairs in zip(rows, told, strict=True)
    )


def _courses(shown: Simulated, width: int) -> list[RenderableType]:
    """The charts begin in the same column, so that they can be compared."""
    drawn = courses(shown)
    used = max(_used(each) for each in drawn)
    parts: list[RenderableType] = []
    for each in drawn:
        parts += [Text(), Text(each.title, style="bold"), _course(shown, each, used - _used(each), width)]
    room = width - used
    return [*parts, *notes([f"One character is {lasting(shown.seconds / room, 2)}."] if room >= FEWEST else [])]


def _used(drawn: Courses) -> int:
    return sum(max(map(len, column)) + GAP for column in zip(*_cells(drawn), strict=True))


def _cells(drawn: Courses) -> list[tuple[str, ...]]:
    return [("", *drawn.header), *((row.name, *row.cells) for row in drawn.rows)]


def _course(shown: Simulated, drawn: Courses, pad: int, width: int) -> RenderableType:
    *names, last = drawn.header
    header = ("", *names, " " * pad + last)
    cells = [*_cells(drawn)[1:], (TROUBLE[shown.scenario.kind], *[""] * len(drawn.header))]
    room = room_for_bars(width, cells, header)
    if not room:
        return table(header, cells[:-1], [Text()] * len(drawn.rows))
    highest = max(max(row.series) for row in drawn.rows) or 1.0
    bars = [Text(sparks(binned(row.series, room), highest), style=colour) for row, colour in _coloured(drawn)]
    return table(header, cells, [*bars, Text(_marked(shown, room), style="red")])


def _coloured(drawn: Courses) -> list[tuple[Course, str]]:
    last = len(drawn.rows) - 1
    return [(row, "green" if at == 0 else "red" if at == last else "yellow") for at, row in enumerate(drawn.rows)]


def _marked(shown: Simulated, room: int) -> str:
    """A line under the time of the trouble."""
    begin, end = (math.floor(at * room) for at in span(shown))
    return " " * begin + "━" * max(1, end - begin)


def _told(shown: Simulated) -> list[RenderableType]:
    found = told_lines(shown)
    longest = max(len(moment) for moment, _ in found)
    return notes([f"{moment:<{longest}}  {text}" for moment, text in found])
