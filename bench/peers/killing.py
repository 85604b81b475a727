"""What does a peer do with a message that kills its worker?

One message that kills every process of its worker, five healthy ones behind it, and one of bytes that are no message. Whenever
the worker is dead it is started again at once. It ends after so many starts, after so long, or when nothing has happened for a
while; then everybody is killed, and the broker is asked what is where.
"""

import collections
import tempfile
import time
from pathlib import Path

from bench.harness.child import scratch
from bench.peers import remains
from bench.peers.brokers import Broker
from bench.peers.kit import work
from bench.peers.results import DONE, GONE, WAITING, Ended, Killed
from bench.peers.setups import Setup
from bench.peers.workers import Worker, WorkerFailed

RESTARTS = 20
SECONDS = 90.0
"""Or four times as long as it may be silent, if that is more."""

LOOK = 0.05

BODIES = {order["name"]: order["name"].encode() for order in work.kill_test()} | {"garbage": work.GARBAGE}


def put_to_the_test(setup: Setup, broker: Broker) -> Killed:
    with tempfile.TemporaryDirectory(prefix="unpoison-peers-", dir=scratch()) as name:
        folder = Path(name)
        url = broker.fresh(folder)
        worker = Worker(setup, url, folder)
        worker.publish("kill-test")
        restarts, took, end = _supervised(worker, folder / "ledger", setup.silence)
        entries = remains.found(broker.server, url)
        ran = collections.Counter(_lines(folder / "ledger"))
        if not ran:
            raise WorkerFailed(f"{setup.name}: no message was handled at all. It wrote:\n{worker.last_lines()}")
    poison_waits = _place("poison", entries, setup, ran["poison"]) == WAITING
    return Killed(
        poison_ran=ran["poison"],
        end="ended" if not poison_waits else end,
        healthy_ran=[ran[name] for name in BODIES if name.startswith("healthy")],
        places={name: _place(name, entries, setup, ran[name]) for name in BODIES if name != "garbage" or _has_garbage(setup)},
        restarts=restarts,
        seconds=round(took, 1),
    )


def _supervised(worker: Worker, ledger: Path, silence: float) -> tuple[int, float, Ended]:
    """How often it was started again, for how long, and what ended it."""
    began = time.monotonic()
    try:
        worker.start()
        restarts, end = _watched(worker, ledger, silence)
    finally:
        worker.kill()
    return restarts, time.monotonic() - began, end


def _watched(worker: Worker, ledger: Path, silence: float) -> tuple[int, Ended]:
    began = changed = time.monotonic()
    restarts, seen = 0, 0
    while (now := time.monotonic()) < began + max(SECONDS, 4 * silence):
        lines = len(_lines(ledger))
        if lines != seen:
            seen, changed = lines, now
        if now > changed + silence:
            return restarts, "silent"
        if not worker.alive:
            if restarts == RESTARTS:
                return restarts, "loops"
            restarts += 1
            worker.start()
        time.sleep(LOOK)
    return restarts, "out of time"


def _place(name: str, entries: list[remains.Entry], setup: Setup, ran: int) -> str:
    """Where a message ended. In two places at once, the one that keeps it for a person counts."""
    places = [place for place, entry in entries if remains.holds(entry, BODIES[name])]
    meanings = {remains.meaning(place, setup.kept) or WAITING for place in places}
    kept = sorted(meanings - {WAITING, DONE})
    if kept and (name == "poison" or not ran or name == "garbage"):
        return kept[0]
    if WAITING in meanings:
        return WAITING
    return DONE if ran and name != "poison" else GONE


def _has_garbage(setup: Setup) -> bool:
    """Where bytes that are no message cannot be stored, there is none."""
    return "def garbage(" in setup.app.read_text()


def _lines(ledger: Path) -> list[str]:
    return ledger.read_text().split() if ledger.exists() else []


def told(killed: Killed) -> str:
    ran = sum(bool(times) for times in killed.healthy_ran)
    return (
        f"the poison ran {killed.poison_ran} times and ended here: {killed.places['poison']} ({killed.end}); "
        f"{ran} of {len(killed.healthy_ran)} healthy ones ran; {killed.restarts} restarts in {killed.seconds:.0f} s"
    )
