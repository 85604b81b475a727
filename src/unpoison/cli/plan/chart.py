"""How does a plan look in a terminal? The same text goes into a pipe, without colours and 80 columns wide."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from unpoison.cli.plan.content import (
    Subject,
    backoff_line,
    burst_notes,
    burst_rows,
    burst_title,
    dead_note,
    delay_text,
    headline,
    left_out,
    load_notes,
    load_rows,
    start_text,
    steps_shown,
    time_note,
)
from unpoison.model.wording import one_line
from unpoison.planning.plan import Plan, Step
from unpoison.planning.warnings import INSTANT, lasting

WIDEST = 120
IN_A_PIPE = 80
GAP = 2
FEW, FEWEST = 8, 4
"""Characters of a bar below which headings give way to it, and below which it is left out."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = " ▁▂▃▄▅▆▇█"


def chart_width(screen: Console) -> int:
    return min(screen.width, WIDEST) if screen.is_terminal else IN_A_PIPE


def chart(subject: Subject, width: int) -> RenderableType:
    """Everything about one consumer."""
    parts: list[RenderableType] = []
    if subject.source is not None:
        parts.append(Text(one_line(subject.source), style="bold"))
    if subject.plan is not None:
        parts += [Text(headline(subject.plan), style="bold"), Text(), *_traffic(subject.plan, width)]
        if subject.plan.scenario.retries:
            parts += [Text(), *_schedule(subject.plan, width)]
        if subject.plan.schedule.last.max:
            parts += [Text(), *_burst(subject.plan, width)]
    for warning in subject.warnings:
        parts += [Text(), Text.assemble(("Warning: ", "bold yellow"), warning.text)]
    return Group(*parts)


def _traffic(plan: Plan, width: int) -> list[RenderableType]:
    rows = load_rows(plan)
    cells = [(row.label, row.rate, row.added, row.dead) for row in rows]
    longest = max(row.length for row in rows)
    header = ("", "rate", "added", "dead letters")
    if _room(width, cells, header) < FEW:
        header = ("", "rate", "added", "dead")
    room = _room(width, cells, header)
    colours = ("blue", "yellow", "yellow", "red")
    bars = [_bar(row.length / longest, room, colour) for row, colour in zip(rows, colours, strict=True)]
    table = _table(header, cells, bars)
    return [Text("Retry traffic", style="bold"), table, *_notes(*load_notes(plan), dead_note(plan))]


def _schedule(plan: Plan, width: int) -> list[RenderableType]:
    header = ("attempt", "delay", "p50", "p90", "p99", "max")
    steps = steps_shown(plan)
    cells = [(f"{step.attempt:,}", delay_text(step), *_times(step, plan)) for step in steps]
    room = _room(width, cells, header)
    bars = [_layers(step, plan.schedule.last.max, room) for step in steps]
    legend = "Bars: █ half have started by then, ▓ 90 %, ░ all." if plan.scenario.backoff.jitter and room else ""
    notes = _notes(*filter(None, (left_out(plan), time_note(plan), legend)))
    return [Text(backoff_line(plan), style="bold"), _table(header, cells, bars), *notes]


def _burst(plan: Plan, width: int) -> list[RenderableType]:
    rows = burst_rows(plan)
    until = plan.schedule.last.max
    header = ("", "most in 1 s", f"in {lasting(INSTANT)}")
    cells = [(row.label, f"{row.second:,}", f"{row.instant:,}") for row in rows]
    buckets = _room(width, cells, header)
    histograms = [row.burst.histogram(max(buckets, 1), until) for row in rows]
    highest = max(map(max, histograms))
    bars = [Text(_sparks(counts, highest) if buckets else "", style="cyan") for counts in histograms]
    return [Text(burst_title(), style="bold"), _table(header, cells, bars), *_notes(*burst_notes(plan))]


def _times(step: Step, plan: Plan) -> list[str]:
    start = step.start
    return [*(start_text(time, plan) for time in (start.p50, start.p90, start.p99)), lasting(start.max)]


def _table(header: Sequence[str], cells: Sequence[Sequence[str]], bars: Sequence[Text]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, GAP, 0, 0))
    for place, name in enumerate(header):
        table.add_column(name, no_wrap=True, justify="left" if place == 0 else "right")
    if any(bars):
        table.add_column("", no_wrap=True)
    for row, bar in zip(cells, bars, strict=True):
        table.add_row(*row, bar) if any(bars) else table.add_row(*row)
    return table


def _room(width: int, cells: Sequence[Sequence[str]], header: Sequence[str]) -> int:
    """What is left for the bars beside the widest cell of each column. 0, and so no bars, where that shows nothing."""
    used = sum(max(map(len, column)) + GAP for column in zip(header, *cells, strict=True))
    return width - used if width - used >= FEWEST else 0


def _notes(*texts: str) -> list[RenderableType]:
    return [Padding(Text(text, style="dim"), (0, 0, 0, GAP), expand=False) for text in texts]


def _bar(share: float, room: int, colour: str) -> Text:
    """What is more than nothing can be seen."""
    if not room:
        return Text()
    eighths = max(round(share * room * 8), 1 if share > 0 else 0)
    return Text(("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip(), style=colour)


def _layers(step: Step, longest: float, room: int) -> Text:
    if not room:
        return Text()
    half, most, all_of_them = (
        round(time / longest * room) if longest else 0 for time in (step.start.p50, step.start.p90, step.start.max)
    )
    return Text("█" * half + "▓" * (most - half) + "░" * (all_of_them - most) or "▏", style="cyan")


def _sparks(counts: Sequence[int], highest: int) -> str:
    """Zero is a blank, and a single start can be seen."""
    levels = (0 if not count else max(1, round(count / highest * (len(_LEVELS) - 1))) for count in counts)
    return "".join(_LEVELS[level] for level in levels).rstrip()
