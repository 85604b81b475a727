"""What can be asked for? `bench` and `kill-test`, which make bench-peers and make kill-test run, and their parts."""

import argparse
import datetime
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from bench.harness import machine
from bench.harness.child import scratch
from bench.peers import baselines, brokers, draining, killing, measuring, page, results, words, workers
from bench.peers.brokers import Broker
from bench.peers.results import Drained, Growth, Killed, KillTest
from bench.peers.setups import BROKERS, Setup, known
from bench.peers.workers import WorkerFailed
from servers import ServerMissing

PEER_NAMES = list(dict.fromkeys(setup.peer for setup in [*known().drain, *known().kill] if setup.peer != "unpoison"))


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _arguments(arguments)
    # As Ctrl-C does: whoever is under way ends the workers that it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    done: int = asked.do(asked)
    tell(f"done in {(time.monotonic() - began) / 60:.1f} minutes")
    return done


def tell(text: str) -> None:
    """Progress, with the time of day: a run takes a while."""
    sys.stderr.write(f"{datetime.datetime.now():%H:%M:%S} {text}\n")  # noqa: DTZ005 - for the person who waits
    sys.stderr.flush()


def bench(asked: argparse.Namespace) -> int:
    return drain(asked) or growth(asked) or write_page(asked)


def drain(asked: argparse.Namespace) -> int:
    wanted = measuring.Asked(asked.rounds, asked.patience, asked.share, asked.side or ())
    kept = results.read(results.RESULTS, dict[str, Drained]) or {}
    for broker in _brokers(asked.only, baselines.available()):
        unfinished = workers.cache() / f"unfinished-{broker}.json"
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        if asked.again:
            unfinished.unlink(missing_ok=True)
        with _left_out_if_missing(broker):
            kept[broker] = measuring.measured(broker, wanted, unfinished, tell)
            if wanted.is_kept:
                results.write(results.RESULTS, _in_order(kept))
                unfinished.unlink(missing_ok=True)
    if not wanted.is_kept:
        tell("a part of the sides or of the messages: nothing was kept")
    for error in (error for found in kept.values() for error in found.failed.values()):
        tell(f"did not get through: {error}")
    return 0


@contextmanager
def _left_out_if_missing(broker: str) -> Iterator[None]:
    """What was found on it before stays."""
    try:
        yield
    except ServerMissing as error:
        tell(f"{broker} is left out: {error}")


def kill_test(asked: argparse.Namespace) -> int:
    kept = results.read(results.KILL_TEST, KillTest) or KillTest("", {}, {})
    kept.day = datetime.datetime.now(datetime.UTC).date().isoformat()
    chosen = [setup for setup in known().kill if not asked.only or setup.broker in asked.only or setup.name in asked.only]
    failed = False
    for broker in _brokers([setup.broker for setup in chosen], set(BROKERS)):
        with _left_out_if_missing(broker), brokers.running(broker) as running:
            kept.versions[broker] = running.version
            for setup in (setup for setup in chosen if setup.broker == broker):
                workers.make(setup.peer, tell)
                try:
                    kept.outcomes[setup.name] = [_killed(setup, running, number + 1, asked.runs) for number in range(asked.runs)]
                except WorkerFailed as error:
                    tell(f"failed: {error}")
                    failed = True
                results.write(results.KILL_TEST, _ordered(kept))
    return write_page(asked) or failed


def _killed(setup: Setup, broker: Broker, number: int, runs: int) -> Killed:
    found = killing.put_to_the_test(setup, broker)
    tell(f"{setup.name}, run {number} of {runs}: {killing.told(found)}")
    return found


def growth(asked: argparse.Namespace) -> int:
    if asked.share != 1.0 or asked.side:
        return 0
    kept = results.read(results.GROWTH, Growth) or Growth("", "", {})
    kept.day, kept.machine = datetime.datetime.now(datetime.UTC).date().isoformat(), machine.described(scratch())
    for broker in _brokers(asked.only, set(BROKERS)):
        with _left_out_if_missing(broker), brokers.running(broker) as running:
            kept.sizes[broker] = draining.grown(running, asked.patience, tell, asked.largest)
        kept.sizes = _in_order(kept.sizes)
        if asked.largest == draining.SIZES[-1]:
            results.write(results.GROWTH, kept)
    return 0


def make_environments(asked: argparse.Namespace) -> int:
    for peer in asked.only or PEER_NAMES:
        workers.make(peer, tell)
        tell(f"{peer}: {workers.python(peer)}")
    return 0


def write_page(_: argparse.Namespace) -> int:
    for file in page.write():
        tell(f"written: {file}")
    for broker, found in (results.read(results.RESULTS, dict[str, Drained]) or {}).items():
        for goal in words.missed(broker, found):
            tell(f"goal missed: {goal}")
    return 0


def _brokers(only: Sequence[str] | None, there_are: set[str]) -> list[str]:
    return [broker for broker in BROKERS if broker in there_are and (not only or broker in only)]


Value = TypeVar("Value")


def _in_order(by_broker: dict[str, Value]) -> dict[str, Value]:
    return {broker: by_broker[broker] for broker in BROKERS if broker in by_broker}


def _ordered(kept: KillTest) -> KillTest:
    """As they stand in setups.toml; without those that no longer do."""
    outcomes = {setup.name: kept.outcomes[setup.name] for setup in known().kill if setup.name in kept.outcomes}
    return KillTest(kept.day, _in_order(kept.versions), outcomes)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="unpoison beside its peers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    on = f"may be repeated: {', '.join(BROKERS)}"

    def command(name: str, does: str, do: object) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=does, description=does)
        added.set_defaults(do=do)
        return added

    for name, does, do in (
        ("bench", "drain, growth and page", bench),
        ("drain", "how fast everybody drains a full queue", drain),
        ("growth", "what a message costs unpoison in queues of 1,000 to 1,000,000", growth),
    ):
        measured = command(name, does, do)
        measured.add_argument("--only", action="append", metavar="BROKER", choices=BROKERS, help=on)
        measured.add_argument(
            "--side", action="append", metavar="NAME", help="only this setup, or raw, or unpoison; nothing is kept"
        )
        measured.add_argument("--share", type=float, default=1.0, help="of the messages, 0.05 to try it out; nothing is kept")
        measured.add_argument("--rounds", type=int, default=3, metavar="N", help="3 unless told otherwise")
        measured.add_argument("--patience", type=float, default=0.0, metavar="SECONDS", help="wait so long for a quiet machine")
        measured.add_argument("--again", action="store_true", help="do not go on with a run that was interrupted")
        measured.add_argument("--largest", type=int, default=draining.SIZES[-1], help="growth: no queue longer than this")
    killed = command("kill-test", "what everybody does with a message that kills its worker", kill_test)
    killed.add_argument("--only", action="append", metavar="NAME", help="a setup or a broker; may be repeated")
    killed.add_argument("--runs", type=int, default=3, metavar="N", help="of each setup, 3 unless told otherwise")
    made = command("environments", "make the peers' environments, and say where they are", make_environments)
    made.add_argument("--only", action="append", metavar="PEER", choices=PEER_NAMES, help=", ".join(PEER_NAMES))
    command("page", "write docs/peers.md and its charts from what is kept", write_page)
    return parser.parse_args(arguments)
