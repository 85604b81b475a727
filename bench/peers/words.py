"""What does the page say? Its fixed texts, and the sentences that depend on what was found."""

import statistics
from collections.abc import Iterable, Iterator, Sequence

from bench.peers import tables
from bench.peers.results import Drained, Growth, Killed, KillTest
from bench.peers.setups import NAMES, Setup, known

OPENING = """
# Beside other libraries

How fast are the libraries that people use for this in Python, and what does each of them do with a message that kills its
worker? Everything here can be run again: `make bench-peers` measures, `make kill-test` kills. This page is written by the two
from `bench/peers/results.json`, `growth.json`, `kill_test.json` and `setups.toml`; nobody types a figure.

Each library runs in an environment of its own with pinned versions, and is set up as its documentation advises for work that
must not be lost: acknowledging after the work, never before. All settings are [at the end](#settings). If one of them does a
library wrong, change it in `bench/peers/setups.toml` and run it again.
"""

KILL_TEST = """
## A message that kills its worker

A message that runs a machine out of memory, or into a bug of a C library, takes its worker down with it: all processes at once,
without an exception that anybody could catch. Whoever watches over it starts a new worker, and the message comes back.

The test does that. One message kills every process of its worker, five healthy ones stand behind it, and one of bytes that are
no message at all. A dead worker is started again at once. It ends after 20 restarts, or when nothing has been started for a
while; then everybody is killed, and the broker itself is asked what is where. Limits are three starts or three retries wherever
there is one, and leases that last minutes or hours were cut to seconds, so that the test need not wait for them.
"""

SPEED = """
## How fast

A full queue, one worker process, and a handler that looks one value up in an order of 256 bytes; that takes next to no time, so
what is seen is the library. Libraries that run many handlers at once may do so; nobody writes a line of log for each message.
Beside them stands the fastest loop that a careful person could write by hand and that is as safe: it acknowledges after the
work, in batches where the broker has that. It counts no attempt, judges no failure, keeps no dead letter and isolates nothing.

unpoison runs with everything on: handlers in a process of their own, the guard on every body, counting, leases. It may use a
second core for that, as Celery's prefork pool and rq do; the CPU column shows what it costs, and for unpoison it includes
starting its processes. Timed is from the first message handled to the last; two seconds later the worker is killed, and the
broker is asked whether anything is left. Each round runs every side once, and ratios are taken within a round.
[Performance](performance.md) tells how the machine is watched meanwhile.
"""

GROWTH = """
## A thousand times as many

What a message costs unpoison in queues from 1,000 messages upward, and how much memory all its processes have at their highest. A
size that would take more than five minutes, publishing included, is left out. A thousand messages are handled in a few
hundredths of a second, too few to tell much. Kafka's client reads up to 16 MB ahead: a queue that is smaller needs less memory.
"""

SETTINGS = """
## Settings

The command with which each library was run, and below it its settings, by its own names for them. Its app is in the folder of
its name in `bench/peers/`, with the versions of all packages.
"""

RATIOS = "× is the median of the ratios of the rounds: it need not be the quotient of the two medians in the table."

GOAL_BESIDE_THE_LOOP = 0.95
GOAL_BESIDE_PEERS = 5.0
GOAL_ON = {"rabbitmq": 4.0}
GOAL_BESIDE = {"pgqueuer": 3.0, "quixstreams": 1.5}
"""How many times as fast as the loop by hand, and as the fastest peer with one message per call, unpoison is meant to be. Whoever
writes the page is told which are missed; they do not stand in it."""

WHY_SLOWER = {
    "kafka": (
        "That loop spends about 3 µs on a message in all, decoding included; as much is spent on one that goes through an "
        "isolated worker without any broker. With a handler that works for 20 µs the two are "
        "[side by side](performance.md#kafka)."
    ),
}


def badness(run: Killed) -> tuple[int, int]:
    """Worst last: first by what became of the healthy ones, then by how often the poison ran."""
    weight = {"done": 0, "done, more than once": 1, "not handled": 2, "dead-lettered": 3, "lost": 4}
    return sum(weight[fate] for fate in tables.fates(run)), run.poison_ran


def kill_test_found(killed: KillTest) -> str:
    """Who passes, what passing costs, and who harms the healthy ones."""
    setups = [setup for setup in known().kill if setup.name in killed.outcomes]
    return " ".join([*_passed(setups, killed), *_ours(setups, killed), *_harm(setups, killed)])


def _passed(setups: Sequence[Setup], killed: KillTest) -> Iterator[str]:
    flawless = [setup for setup in setups if tables.is_flawless(killed.outcomes[setup.name])]
    ours = [NAMES[setup.broker] for setup in flawless if setup.peer == "unpoison"]
    passed = [f"unpoison on {_listed(ours)}"] if ours else []
    passed += [f"{setup.label} on {NAMES[setup.broker]}" for setup in flawless if setup.peer != "unpoison"]
    yield f"Stopped the poison, kept it for a person, and handled every healthy message once, in every run: {_listed(passed)}."
    for setup in (setup for setup in flawless if setup.peer != "unpoison"):
        kept = killed.outcomes[setup.name][0].places["poison"]
        yield f"With {setup.label} the poison is kept as: {kept}."
    missing = [NAMES[setup.broker] for setup in setups if setup.peer == "unpoison" and setup not in flawless]
    if missing:
        yield f"unpoison did not on {_listed(missing)}."


def _ours(setups: Sequence[Setup], killed: KillTest) -> Iterator[str]:
    starts = [run.poison_ran for setup in setups if setup.peer == "unpoison" for run in killed.outcomes[setup.name]]
    if max(starts, default=0) > 3:
        yield (
            f"unpoison started the poison up to {max(starts)} times with a limit of three: where consumers vanish as a whole, "
            "its [promise](isolation.md#the-promise) is one start more than the limit at most."
        )


def _harm(setups: Sequence[Setup], killed: KillTest) -> Iterator[str]:
    def harmed(fate: str) -> list[Setup]:
        return [setup for setup in setups if any(fate in tables.fates(run) for run in killed.outcomes[setup.name])]

    if lost := harmed("lost"):
        yield f"Healthy messages were never handled and are nowhere any more, in at least one run, with {_named(lost)}."
    if dead := harmed("dead-lettered"):
        yield (
            f"Healthy messages that had never run were put aside together with the poison by {_named(dead)}: there, whatever was "
            "in the same worker as the poison is charged with it."
        )


def kill_test_footnote(killed: KillTest) -> str:
    runs = sorted({len(outcomes) for outcomes in killed.outcomes.values()})
    versions = ", ".join(f"{NAMES[broker]} {version}" for broker, version in killed.versions.items())
    return (
        f"Run {_listed([str(count) for count in runs])} times each, last on {killed.day}; where runs differ, all of it is told, "
        f"and the chart shows the worst. {versions}. *Stuck*: on the broker, and not started any more until the test ended."
    )


def speed_found(broker: str, found: Drained) -> str:
    """What the table says, whoever it favours."""
    setups = [setup for setup in known().drain if setup.broker == broker]
    measured = [setup for setup in setups if setup.name in found.cells]
    return " ".join([*_beside_the_loop(broker, found), *_beside_peers(found, measured), *_held(found, measured), *_failed(found)])


def _beside_the_loop(broker: str, found: Drained) -> Iterator[str]:
    ratio = tables.ratios(found.cells["unpoison"], found.cells["raw"]).median
    yield f"unpoison is at {ratio:.2f} × the loop by hand."
    if ratio < GOAL_BESIDE_THE_LOOP and broker in WHY_SLOWER:
        yield WHY_SLOWER[broker]


def _beside_peers(found: Drained, setups: Sequence[Setup]) -> Iterator[str]:
    ours = found.cells["unpoison"]
    if one := tables.fastest([setup for setup in setups if setup.per_call == 1], found):
        times = tables.ratios(ours, found.cells[one.name]).median
        yield f"The fastest peer with one message per call is {one.label}: {_beside(times)}."
    if many := tables.fastest([setup for setup in setups if setup.per_call > 1], found):
        yield f"{many.label}: {_beside(tables.ratios(ours, found.cells[many.name]).median)}."
    cheaper = [setup.label for setup in setups if _cpu(found, setup.name) < _cpu(found, "unpoison")]
    if cheaper:
        yield f"Less CPU per message than unpoison: {_listed(cheaper)}."


def _held(found: Drained, setups: Sequence[Setup]) -> Iterator[str]:
    for setup in setups:
        left = max(cell.left for cell in found.cells[setup.name])
        if left:
            yield (
                f"{setup.label} had up to {left:,} finished messages unacknowledged when it was killed two seconds after the "
                "last one: they would run again."
            )


def _failed(found: Drained) -> Iterator[str]:
    return (f"{name} did not get through: {error}" for name, error in found.failed.items())


def _beside(times: float) -> str:
    if times >= 1:
        return f"unpoison is {times:.1f} × as fast"
    return f"it is faster than unpoison, which reaches {times:.2f} × of its rate"


def missed(broker: str, found: Drained) -> Iterator[str]:
    """The goals that these figures miss."""
    ours = found.cells["unpoison"]
    sides = [("the loop by hand", found.cells["raw"], GOAL_BESIDE_THE_LOOP)]
    measured = [setup for setup in known().drain if setup.broker == broker and setup.name in found.cells]
    if one := tables.fastest([setup for setup in measured if setup.per_call == 1], found):
        goal = GOAL_BESIDE.get(one.peer, GOAL_ON.get(broker, GOAL_BESIDE_PEERS))
        sides.append((one.label, found.cells[one.name], goal))
    for name, theirs, goal in sides:
        times = tables.ratios(ours, theirs).median
        if times < goal:
            yield f"{NAMES[broker]}: {times:.2f} × {name}, the goal is {goal:g} ×"


def _cpu(found: Drained, side: str) -> float:
    return statistics.median(cell.cpu / cell.messages for cell in found.cells[side])


def speed_footnote(found: Drained) -> str:
    rounds = len(found.cells["raw"])
    disturbed = sum(cell.disturbed for cells in found.cells.values() for cell in cells)
    noise = f", {disturbed} runs of them disturbed by other processes" if disturbed else ""
    measured = f"Measured on {found.day} in {rounds} rounds{noise}; median (lowest..highest)"
    return f"{RATIOS} Version {found.version}. {measured}. {found.machine}."


def growth_found(growth: Growth) -> str:
    """The largest beside the smallest that is long enough to be timed."""
    return " ".join(_grown(NAMES[broker], sizes) for broker, sizes in growth.sizes.items() if len(sizes) > 2)


def _grown(name: str, sizes: Sequence) -> str:
    smallest, first, last = sizes[0], sizes[1], sizes[-1]
    cost = last.seconds / last.messages / (first.seconds / first.messages)
    return (
        f"{name}: a message among {last.messages:,} costs {cost:.2f} × of one among {first.messages:,}, with "
        f"{last.memory / smallest.memory:.2f} × the memory of {smallest.messages:,}."
    )


def _named(setups: Iterable[Setup]) -> str:
    return _listed([f"{setup.label} on {NAMES[setup.broker]}" for setup in setups])


def _listed(words: Sequence[str]) -> str:
    if not words:
        return "none"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
