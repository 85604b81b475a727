"""Sets the demo up: a temporary SQLite file with the orders, the same orders for the plain loop, and the two programs that
consume them, each under a small supervisor."""

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unpoison.brokers import broker_for
from unpoison.cli.demo import shop
from unpoison.cli.demo.plain_loop import Spool
from unpoison.cli.demo.poison import Traffic, message_id
from unpoison.flow.sending import check
from unpoison.model.message import Outgoing

# The supervisor, in place of systemd or a container platform. unpoison's consumer and the plain loop get the same one, with the
# same limit on restarts.


MOST_RESTARTS = 5


@dataclass(frozen=True, slots=True)
class Death:
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
        """Whether it died more often than it may be restarted."""
        return len(self.deaths) > self.restarts

    def look(self) -> None:
        """Start it again if it died."""
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
    """Sleep so long, but wake at once when one of them ends."""
    select.select([program for program in programs if not program.is_over], [], [], seconds)
    for program in programs:
        program.look()


# The stage.


APP = "unpoison.cli.demo.orders:app"
SOURCE = "orders"
PREFIX = "unpoison-demo-"
KEPT = "unpoison-demo"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where everything is. All of it lies in `folder`, but for a file that is to be kept."""

    folder: Path
    database: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.database))}"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def log(self) -> Path:
        return self.folder / "consumer.log"

    @property
    def spool(self) -> Spool:
        return Spool(self.folder / "spool")

    @property
    def plain_ledger(self) -> Path:
        return self.folder / "plain-ledger"

    def publish(self, orders: Traffic) -> None:
        """For both consumers. Sent as another program would send it: without the limits of this app."""
        broker = broker_for(self.url)
        broker.open([SOURCE])
        messages = [Outgoing(message_id(number), SOURCE, body) for number, body in enumerate(orders.bodies, 1)]
        check(messages, broker.publish(messages))
        broker.close()
        self.spool.fill(orders.bodies)

    def consumer(self) -> Supervised:
        """The real one: `unpoison run`, until nothing is left."""
        command = [sys.executable, "-m", "unpoison", "run", APP, "--until-empty", "--log-format", "json"]
        return Supervised(command, self._environment(self.ledger), self.log)

    def plain_loop(self) -> Supervised:
        module = "unpoison.cli.demo.plain_loop"
        command = [sys.executable, "-m", module, str(self.folder / "spool"), str(os.getpid())]
        return Supervised(command, self._environment(self.plain_ledger), self.folder / "plain.log")

    def _environment(self, entries: Path) -> dict[str, str]:
        """Of the programs only. Settings that the person has made for apps of their own are not for this one."""
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
