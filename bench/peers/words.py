"""What does the page say? Its fixed texts, and the sentences that depend on what was found."""

import statistics
from collections.abc import Iterable, Iterator, Sequence

from bench.peers import tables
from bench.peers.results import Drained, Growth, Killed, KillTest
from bench.peers.setups import NAMES, Setup, known

OPENING = """
# Beside other libraries

How fast are other Python libraries for this job, and what does each of them do with a message that kills its worker? You can
repeat everything here: `make bench-peers` measures, `make kill-test` kills. Both generate this page from
`bench/peers/results.json`, `growth.json`, `kill_test.json` and `setups.toml`; no figure is typed by hand.

Each library runs in its own environment with pinned versions. It is set up as its documentation recommends for work that must
not be lost: it acknowledges after the work, never before. All settings are [at the end](#settings). If a setting is unfair to a
library, change it in `bench/peers/setups.toml` and run the test again.
"""

KILL_TEST = """
## A message that kills its worker

A message that uses up all memory, or triggers a bug in a C library, takes its worker down with it: all processes at once, with
no exception to catch. The supervisor starts a new worker, and the broker delivers the message again.

The test reproduces this. One message kills every process of its worker. Behind it wait five healthy messages, and one whose
bytes are not a message at all. A dead worker is restarted at once. The test ends after 20 restarts, or when no message has been
started for a while. Then all workers are killed, and the broker itself is asked where each message is. Where a library has a
limit, it is three starts or three retries. Leases of minutes or hours are cut to seconds to keep the test short.
"""

SPEED = """
## How fast

The queue is full, there is one worker process, and the handler looks one value up in an order of 256 bytes. The handler takes
almost no time, so the figures show the cost of the library. Libraries that can run many handlers at once may do so; none of
them logs a line per message. The baseline is the fastest safe loop that one could write by hand: it acknowledges after the
work, in batches where the broker allows it. It does not count attempts, classify failures, keep dead letters or isolate handlers.

unpoison runs with everything on: isolated handlers, the guard on every body, counting, leases. It may use a second core, as
Celery's prefork pool and rq do. The CPU column shows what that costs; for unpoison it includes starting its processes. The time
runs from the first message handled to the last. Two seconds later the worker is killed, and the broker is asked what is left.
Each round runs every side once, and ratios compare sides of the same round. [Performance](performance.md) describes how
disturbed rounds are recognised.
"""

GROWTH = """
## A thousand times as many

The cost of a message in queues from 1,000 messages upward, and the peak memory of all unpoison processes together. Sizes that
would take more than five minutes, publishing included, are left out. A thousand messages take only a few hundredths of a
second, too short for a precise figure. Kafka's client reads up to 16 MB ahead, so a smaller queue needs less memory.
"""

SETTINGS = """
## Settings

For each library: the command that ran it, then its settings under its own names. Its app and the pinned versions of all
packages are in the folder of that name in `bench/peers/`.
"""

RATIOS = "× is the median of the ratios of all rounds, so it need not be the quotient of the two medians in the table."

GOAL_BESIDE_THE_LOOP = 0.95
GOAL_BESIDE_PEERS = 5.0
GOAL_ON = {"rabbitmq": 4.0}
GOAL_BESIDE = {"pgqueuer": 3.0, "quixstreams": 1.5}
"""How many times as fast as the loop by hand, and as the fastest peer with one message per call, unpoison is meant to be.
`make bench-peers` prints those that are missed; the page does not show them."""

WHY_SLOWER = {
    "kafka": (
        "That loop spends about 3 µs per message in all, decoding included; passing a message through an isolated worker costs "
        "as much, even without a broker. With a handler that works for 20 µs the two are "
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
    yield f"In every run, these stopped the poison, kept it for inspection and handled each healthy one once: {_listed(passed)}."
    for setup in (setup for setup in flawless if setup.peer != "unpoison"):
        kept = killed.outcomes[setup.name][0].places["poison"]
        yield f"{setup.label} keeps the poison as: {kept}."
    missing = [NAMES[setup.broker] for setup in setups if setup.peer == "unpoison" and setup not in flawless]
    if missing:
        yield f"unpoison did not on {_listed(missing)}."


def _ours(setups: Sequence[Setup], killed: KillTest) -> Iterator[str]:
    starts = [run.poison_ran for setup in setups if setup.peer == "unpoison" for run in killed.outcomes[setup.name]]
    if max(starts, default=0) > 3:
        yield (
            f"unpoison started the poison up to {max(starts)} times with a limit of three: when whole consumers vanish, "
            "it [promises](isolation.md#the-promise) at most one start above the limit."
        )


def _harm(setups: Sequence[Setup], killed: KillTest) -> Iterator[str]:
    def harmed(fate: str) -> list[Setup]:
        return [setup for setup in setups if any(fate in tables.fates(run) for run in killed.outcomes[setup.name])]

    if lost := harmed("lost"):
        yield f"Healthy messages were lost without being handled, in at least one run, with {_named(lost)}."
    if dead := harmed("dead-lettered"):
        yield (
            f"Healthy messages that had never run were dead-lettered together with the poison by {_named(dead)}: there, every "
            "message in the same worker as the poison is charged with the crash."
        )


def kill_test_footnote(killed: KillTest) -> str:
    runs = sorted({len(outcomes) for outcomes in killed.outcomes.values()})
    versions = ", ".join(f"{NAMES[broker]} {version}" for broker, version in killed.versions.items())
    return (
        f"Run {_listed([str(count) for count in runs])} times each, last on {killed.day}. Where runs differ, the tables show "
        f"every outcome, and the chart shows the worst. {versions}. *Stuck*: still on the broker, but not started again "
        "before the test ended."
    )


def speed_found(broker: str, found: Drained) -> str:
    """What the table says, whoever it favours."""
    setups = [setup for setup in known().drain if setup.broker == broker]
    measured = [setup for setup in setups if setup.name in found.cells]
    return " ".join([*_beside_the_loop(broker, found), *_beside_peers(found, measured), *_held(found, measured), *_failed(found)])


def _beside_the_loop(broker: str, found: Drained) -> Iterator[str]:
    ratio = tables.ratios(found.cells["unpoison"], found.cells["raw"]).median
    yield f"unpoison runs at {ratio:.2f} × the rate of the loop by hand."
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
                f"When {setup.label} was killed two seconds after the last message, up to {left:,} finished messages were still "
                "unacknowledged: they would run again."
            )


def _failed(found: Drained) -> Iterator[str]:
    return (f"{name} did not get through: {error}" for name, error in found.failed.items())


def _beside(times: float) -> str:
    if times >= 1:
        return f"unpoison is {times:.1f} × as fast"
    return f"it is faster than unpoison, which reaches {times:.2f} × its rate"


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
    noise = f", with {disturbed} runs disturbed by other processes" if disturbed else ""
    measured = f"Measured on {found.day} in {rounds} rounds{noise}; median (lowest..highest)"
    return f"{RATIOS} Version {found.version}. {measured}. {found.machine}."


def growth_found(growth: Growth) -> str:
    """The largest beside the smallest that is long enough to be timed."""
    return " ".join(_grown(NAMES[broker], sizes) for broker, sizes in growth.sizes.items() if len(sizes) > 2)


def _grown(name: str, sizes: Sequence) -> str:
    smallest, first, last = sizes[0], sizes[1], sizes[-1]
    cost = last.seconds / last.messages / (first.seconds / first.messages)
    return (
        f"{name}: a message in a queue of {last.messages:,} costs {cost:.2f} × as much as in one of {first.messages:,}, and "
        f"memory is {last.memory / smallest.memory:.2f} × that of {smallest.messages:,}."
    )


def _named(setups: Iterable[Setup]) -> str:
    return _listed([f"{setup.label} on {NAMES[setup.broker]}" for setup in setups])


def _listed(words: Sequence[str]) -> str:
    if not words:
        return "none"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
