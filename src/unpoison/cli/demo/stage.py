"""Sets the demo up (a SQLite file, a folder for the plain loop, a small supervisor for each of the two programs) and observes
how far both are."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from unpoison.brokers import broker_for, dead_letters_for
from unpoison.cli.demo import shop
from unpoison.cli.demo.plain_loop import Spool, order_of
from unpoison.cli.demo.shop import Entry, Tail, Traffic, entry_of, message_id, number_of
from unpoison.deadletters import DLQManager
from unpoison.flow.sending import check
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Outgoing

# The supervisor, in place of systemd or a container platform. unpoison's consumer and the plain loop get the same one, with the
# same limit on restarts.


MOST_RESTARTS = 5


class Death(NamedTuple):
    """A process that did not end in good order: when, and with which status (below zero: the signal)."""

    at: float
    status: int


class Supervised:
    """One program, restarted at once whenever it dies, at most MOST_RESTARTS times."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self._log = command, dict(environment), log
        self.deaths: list[Death] = []
        self.restarts = 0
        self.is_over = False
        self._start()

    @property
    def gave_up(self) -> bool:
        return len(self.deaths) > self.restarts

    def look(self) -> None:
        if self.is_over or self._process.poll() is None:
            return
        os.close(self._ended)
        status = self._process.returncode
        if status != 0:
            self.deaths.append(Death(time.time(), status))
        self.is_over = status == 0 or self.restarts >= MOST_RESTARTS
        if not self.is_over:
            self.restarts += 1
            self._start()

    def stop(self) -> None:
        """End it, and what it started with it: workers die with their consumer."""
        if not self.is_over:
            self._process.kill()
            self._process.wait()
            os.close(self._ended)
            self.is_over = True

    def _start(self) -> None:
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then ends what it started.
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self._ended = os.pidfd_open(self._process.pid)

    def fileno(self) -> int:
        """Readable once the process has ended."""
        return self._ended


def wait(programs: Sequence[Supervised], seconds: float) -> None:
    """Sleep, but wake at once when one of them ends."""
    select.select([program for program in programs if not program.is_over], [], [], seconds)
    for program in programs:
        program.look()


APP = "unpoison.cli.demo.orders:app"
SOURCE = "orders"
PREFIX = "unpoison-demo-"
KEPT = "unpoison-demo"


class Stage:
    """Where everything is: in `folder`, except a database that is to be kept."""

    def __init__(self, folder: Path, database: Path) -> None:
        self.folder, self.database = folder, database
        self.url = f"sqlite:///{quote(str(database))}"
        self.spool = Spool(folder / "spool")
        self.ledger, self.plain_ledger = folder / "ledger", folder / "plain-ledger"
        self.log, self.plain_log = folder / "consumer.log", folder / "plain.log"

    def publish(self, orders: Traffic) -> None:
        """For both consumers. Sent as another program would send it: without the limits of this app."""
        broker = broker_for(self.url)
        broker.open([SOURCE])
        messages = [Outgoing(message_id(number), SOURCE, body) for number, body in enumerate(orders.bodies, 1)]
        check(messages, broker.publish(messages))
        broker.close()
        self.spool.fill(orders.bodies)

    def consumer(self) -> Supervised:
        command = [sys.executable, "-m", "unpoison", "run", APP, "--until-empty", "--log-format", "json"]
        return Supervised(command, self._environment(self.ledger), self.log)

    def plain_loop(self) -> Supervised:
        command = [sys.executable, "-m", "unpoison.cli.demo.plain_loop", str(self.spool.folder), str(os.getpid())]
        return Supervised(command, self._environment(self.plain_ledger), self.plain_log)

    def _environment(self, entries: Path) -> dict[str, str]:
        """For both programs. UNPOISON_ variables are left out: they are meant for the person's own apps."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("UNPOISON_")}
        ours = {"UNPOISON_URL": self.url, shop.VARIABLE: str(entries), shop.SUPERVISOR: str(os.getpid())}
        return inherited | ours


def set_up(*, keep: bool) -> Stage:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    return Stage(folder, _new_file() if keep else folder / "shop.db")


def _new_file() -> Path:
    """Create a file in the current folder under a free name: unpoison-demo.db, unpoison-demo-2.db and so on."""
    number = 1
    while True:
        path = Path(f"{KEPT}.db" if number == 1 else f"{KEPT}-{number}.db")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path


# How far are the two consumers? Read from the broker, the DLQ, the handlers' ledgers, the consumer's log and the spool.


DEATHS = ("unpoison.WorkerDied", "unpoison.Timeout")
"""Failures that cost a worker process."""


STUCK = 1.0
"""Seconds without a start after which the plain loop is not slow but stuck."""


class PlainLoop(NamedTuple):
    """What a plain loop did with the same messages in the same time. Only sound orders count as done, waiting or lost."""

    sound: int
    done: int
    waiting: int
    lost: int
    restarts: int
    is_down: bool
    stuck_at: str | None
    stuck_on: str | None
    requeued: int
    seconds: float


class Snapshot(NamedTuple):
    """Where all orders are at one moment. `states` has a word for each poisoned one. `is_plain_over`: nothing is left to the
    plain loop, poison included."""

    seconds: float
    done: int
    retrying: int
    dead: int
    discarded: int
    waiting: int
    restarts: int
    worker_deaths: int
    states: Mapping[int, str]
    letters: Mapping[int, DeadLetter]
    plain: PlainLoop
    is_plain_over: bool


class Observer:
    """Looks at both consumers from outside. Keeps what it read from their ledgers for the account at the end."""

    def __init__(self, stage: Stage, orders: Traffic, consumer: Supervised, plain: Supervised) -> None:
        self._stage, self._orders, self._consumer, self._plain = stage, orders, consumer, plain
        self._began = time.monotonic()
        self._dlq = dead_letters_for(stage.url, SOURCE, create=False)
        self._ledger, self._plain_ledger, self._log = Tail(stage.ledger), Tail(stage.plain_ledger), Tail(stage.log)
        self.entries: list[Entry] = []
        self.plain_entries: list[Entry] = []
        self.worker_deaths = 0

    def close(self) -> None:
        self._dlq.broker.close()

    def look(self) -> Snapshot:
        self._read()
        depth = self._dlq.broker.depth(SOURCE)
        letters = {number_of(letter.message.id): letter for letter in DLQManager(self._dlq, SOURCE).letters()}
        done = orders(self.entries, "done") - letters.keys()
        discarded = orders(self.entries, "discard") - letters.keys() - done
        starts = Counter(entry.order for entry in self.entries if entry.what == "start")
        seconds, plain_line = time.monotonic() - self._began, [order_of(file) for file in self._stage.spool.waiting()]
        return Snapshot(
            seconds=seconds,
            done=len(done),
            retrying=depth.delayed,
            dead=depth.dead,
            discarded=len(discarded),
            waiting=depth.ready + depth.leased,
            restarts=self._consumer.restarts,
            worker_deaths=self.worker_deaths,
            states={number: _state(number, letters, done, discarded, starts[number]) for number in self._orders.poison},
            letters=letters,
            plain=self._look_at_plain(plain_line, seconds),
            is_plain_over=not plain_line,
        )

    def _read(self) -> None:
        self.entries += map(entry_of, self._ledger.lines())
        self.plain_entries += map(entry_of, self._plain_ledger.lines())
        self.worker_deaths += sum(_is_worker_death(line) for line in self._log.lines())

    def _look_at_plain(self, line: Sequence[int], seconds: float) -> PlainLoop:
        poison, done = self._orders.poison, orders(self.plain_entries, "done")
        sound = set(range(1, len(self._orders.bodies) + 1)) - poison.keys()
        last = self.plain_entries[-1].at if self.plain_entries else time.time()
        at = line[0] if line and (self._plain.gave_up or time.time() - last > STUCK) else None
        return PlainLoop(
            sound=len(sound),
            done=len(done & sound),
            waiting=len(sound.intersection(line)),
            lost=len(sound.difference(done, line)),
            restarts=self._plain.restarts,
            is_down=self._plain.gave_up,
            stuck_at=None if at is None else message_id(at),
            stuck_on=poison[at].name if at is not None and at in poison else None,
            requeued=sum(entry.what == "requeue" for entry in self.plain_entries),
            seconds=seconds,
        )


def orders(entries: Sequence[Entry], what: str) -> set[int]:
    return {entry.order for entry in entries if entry.what == what}


def _state(number: int, letters: Mapping[int, DeadLetter], done: set[int], discarded: set[int], starts: int) -> str:
    if number in letters:
        return "dead"
    if number in discarded:
        return "discarded"
    if number in done:
        return "healed"
    return f"attempt {starts}" if starts else "waiting"


def _is_worker_death(line: str) -> bool:
    """Whether a line of the consumer's log says that a message cost it a worker."""
    try:
        told = json.loads(line)
    except ValueError:  # not the consumer's own words
        return False
    if not isinstance(told, dict) or told.get("event") not in ("retry", "dead"):
        return False
    return any(name in told["message"] for name in DEATHS)
