"""What is set up before the demo begins? A throw-away SQLite file with the orders, the same orders for the plain loop, and
the two programs that consume them."""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unpoison.brokers import broker_for
from unpoison.cli.demo import ledger, trouble
from unpoison.cli.demo.poison import Traffic, message_id
from unpoison.cli.demo.spool import Spool
from unpoison.cli.demo.supervisor import Supervised
from unpoison.flow.sending import check
from unpoison.model.message import Outgoing

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
        """For both consumers. The sender is somebody else's program: it knows no limit of this app."""
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
        ours = {"UNPOISON_URL": self.url, ledger.VARIABLE: str(entries), trouble.SUPERVISOR: str(os.getpid())}
        return inherited | ours


def set_up(*, keep: bool) -> Stage:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    return Stage(folder, _new_file() if keep else folder / "shop.db")


def _new_file() -> Path:
    """In the current folder, under a name that nobody uses: unpoison-demo.db, unpoison-demo-2.db and so on. Made at once, so that
    nobody else takes it."""
    number = 1
    while True:
        path = Path(f"{KEPT}.db" if number == 1 else f"{KEPT}-{number}.db")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path
