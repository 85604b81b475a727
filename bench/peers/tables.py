"""How are the figures shown as text? Tables for the page, and the sentences that depend on them."""

import statistics
from collections.abc import Iterable, Sequence

from bench.harness.figures import Spread
from bench.harness.tables import spread
from bench.peers.results import DONE, GONE, WAITING, Cell, Drained, Grown, Killed
from bench.peers.setups import NAMES, OURS, RAW, Setup, known


def markdown(headings: Sequence[str], lines: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table whose first column, and all from number `words` on, are text; the others are figures."""
    rule = ["---" if at == 0 or at >= words > 1 else "---:" for at in range(len(headings))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *lines])


# How fast


def side_label(side: str, broker: str) -> str:
    if side in ("raw", "unpoison"):
        return RAW[broker] if side == "raw" else f"**{OURS}**"
    return next(setup.label for setup in known().drain if setup.name == side)


def median_rate(cells: Sequence[Cell]) -> float:
    return statistics.median(cell.rate for cell in cells)


def in_order(found: Drained) -> list[tuple[str, list[Cell]]]:
    """The loop by hand, unpoison, and then the fastest first."""
    first, still_known = ("raw", "unpoison"), {setup.name for setup in known().drain}
    others = sorted(found.cells.keys() & still_known, key=lambda side: -median_rate(found.cells[side]))
    return [(side, found.cells[side]) for side in (*first, *others)]


def ratios(mine: Sequence[Cell], theirs: Sequence[Cell]) -> Spread:
    """Round by round: both sides of one had the same neighbours."""
    return Spread.of([one.rate / other.rate for one, other in zip(mine, theirs, strict=False)])


def drained(broker: str, found: Drained) -> str:
    raw, ours = found.cells["raw"], found.cells["unpoison"]
    headings = [NAMES[broker], "messages/s", "× the loop by hand", "CPU µs per message", "of the server", "unpoison is"]
    shown_left = any(cell.left for cells in found.cells.values() for cell in cells)
    if shown_left:
        headings.append("left unacknowledged")
    lines = []
    for side, cells in in_order(found):
        line = [
            side_label(side, broker),
            spread(Spread.of([cell.rate for cell in cells]), "messages/s"),
            "1" if side == "raw" else spread(ratios(cells, raw), "ratio"),
            f"{statistics.median(cell.cpu / cell.messages for cell in cells) * 1e6:,.1f}",
            f"{statistics.median(cell.server_cpu / cell.messages for cell in cells) * 1e6:,.1f}" if broker != "sqlite" else "",
            "" if side == "unpoison" else f"{ratios(ours, cells).median:,.2f} ×",
        ]
        lines.append([*line, f"{max(cell.left for cell in cells):,}"] if shown_left else line)
    return markdown(headings, lines)


def fastest(setups: Sequence[Setup], found: Drained) -> Setup | None:
    return max(setups, key=lambda setup: median_rate(found.cells[setup.name]), default=None)


def grown(sizes: dict[str, list[Grown]]) -> str:
    headings = ["", "messages", "µs per message", "CPU µs per message", "memory, MB"]
    return markdown(
        headings,
        [
            [
                NAMES[broker] if at == 0 else "",
                f"{one.messages:,}",
                f"{one.seconds / one.messages * 1e6:.1f}",
                f"{one.cpu / one.messages * 1e6:.1f}",
                f"{one.memory / 1e6:.0f}",
            ]
            for broker, found in sizes.items()
            for at, one in enumerate(found)
        ],
    )


# The kill test


def killed(broker: str, outcomes: dict[str, list[Killed]], setups: Sequence[Setup]) -> str:
    headings = [
        NAMES[broker],
        "starts of the poison",
        "healthy, of 5",
        "the poison is",
        "the healthy ones",
        "bytes that are no message",
    ]
    lines = [[_name(setup), *_killed_cells(setup, outcomes[setup.name])] for setup in setups if setup.name in outcomes]
    return markdown(headings, lines, words=3)


def _name(setup: Setup) -> str:
    return f"**{setup.label}**" if setup.peer == "unpoison" else setup.label


def _killed_cells(setup: Setup, runs: Sequence[Killed]) -> list[str]:
    starts = _range([run.poison_ran for run in runs])
    loops = any(run.end in ("loops", "out of time") for run in runs)
    return [
        f"{starts}, not over" if loops else starts,
        _range([handled(run) for run in runs]),
        _either(_poison_word(setup, run) for run in runs),
        healthy_words(runs),
        _either(_garbage_word(setup, run) for run in runs),
    ]


def handled(run: Killed) -> int:
    """How many of the healthy ones ran."""
    return sum(times > 0 for times in run.healthy_ran)


def _poison_word(setup: Setup, run: Killed) -> str:
    place = run.places["poison"]
    if place == WAITING:
        return {"silent": "stuck"}.get(run.end, "in the queue, run again")
    return setup.gone if place == GONE else place


def _garbage_word(setup: Setup, run: Killed) -> str:
    place = run.places.get("garbage", "cannot be stored")
    return setup.gone if place == GONE else place


def fate(name: str, times: int, run: Killed) -> str:
    """What became of a healthy message, in a word of the chart."""
    place = run.places[name]
    if times:
        return "done" if times == 1 else "done, more than once"
    if place == WAITING or place.startswith("given up"):
        return "not handled"
    return "lost" if place in (GONE, DONE) else "dead-lettered"


def fates(run: Killed) -> list[str]:
    names = [name for name in run.places if name.startswith("healthy")]
    return [fate(name, times, run) for name, times in zip(names, run.healthy_ran, strict=True)]


def healthy_words(runs: Sequence[Killed]) -> str:
    """What became of the healthy ones, over all runs."""
    found = [fates(run) for run in runs]
    kinds = list(dict.fromkeys(word for run in found for word in run))
    if kinds == ["done"]:
        return "all done"
    most = max(times for run in runs for times in run.healthy_ran)
    told = [f"{_range([run.count(kind) for run in found])} {kind}" for kind in kinds]
    return ", ".join(told).replace("done, more than once", f"done up to {most} times")


def is_flawless(runs: Sequence[Killed]) -> bool:
    """The poison was stopped and is kept for a person, every healthy one was handled and none is anywhere else."""
    return all(run.end == "ended" and run.places["poison"] != GONE and set(fates(run)) == {"done"} for run in runs)


def _range(figures: Sequence[int]) -> str:
    low, high = min(figures), max(figures)
    return f"{low}" if low == high else f"{low}–{high}"


def _either(words: Iterable[str]) -> str:
    return "; or ".join(dict.fromkeys(words))
