"""How are the faults of our own embedded brokers caused?"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from unpoison.brokers.memory import MemoryBroker
from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.brokers.sqlite.file import path_of
from unpoison.brokers.sqlite.owner import take_over
from unpoison.deadletters import DLQManager
from unpoison.errors import BrokerUnavailable
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Broker
from unpoison.store.letters.choice import letters_of
from unpoison.testing import Lab
from unpoison.testing.given import PLAIN_ID


class SQLiteLab(Lab):
    """A file of its own."""

    dlq_name = ""
    modules = (*(f"unpoison.brokers.sqlite.{name}" for name in ("broker", "deadletters", "owner", "rows")), "unpoison.port.sql")
    readers = tuple(f"unpoison.brokers.sqlite.rows.{name}" for name in ("delivery_of", "Delivery"))

    def __init__(self, folder: Path) -> None:
        super().__init__(f"sqlite:///{folder}/broker.db", folder)
        self._shifted = 0.0

    def connect(self) -> Broker:
        return SQLiteBroker(self.url, clock=lambda: time.time() + self._shifted)

    def shift_clock(self, seconds: float) -> None:
        self._shifted += seconds

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As a takeover by a consumer that finds the owner's lock free."""
        assert isinstance(broker, SQLiteBroker)
        with closing(sqlite3.connect(path_of(self.url), isolation_level=None)) as run:
            run.execute("begin immediate")
            take_over(run, broker._owner.no, time.time() + self._shifted)
            run.execute("commit")

    def refused_message(self, broker: Broker) -> Outgoing:
        """SQLite takes a gigabyte in one value, unless a lower limit is set."""
        assert isinstance(broker, SQLiteBroker)
        broker._connected().setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        return Outgoing(PLAIN_ID, "orders", b"x" * 100_001)

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        refuse = (
            "create trigger refuse before insert on unpoison_dead begin select raise(abort, 'no dead letter can be stored'); end"
        )
        with closing(sqlite3.connect(path_of(self.url), isolation_level=None)) as run:
            run.execute(refuse)
            try:
                yield
            finally:
                run.execute("drop trigger refuse")


class _Full(dict[int, DeadLetter]):
    def __setitem__(self, no: int, letter: DeadLetter) -> None:
        raise BrokerUnavailable("no dead letter can be stored")


class CollectedLab(SQLiteLab):
    """A file whose dead letters are collected into a store of their own: what is worked on is there."""

    def dlq(self, source: str, page: int | None = None) -> DLQManager:
        manager = DLQManager(letters_of(self.url, f"sqlite:///{self.folder}/letters.db", source), source)
        manager.page = page or manager.page
        self._opened.append(manager)
        return manager


class MemoryLab(Lab):
    """A name of its own in this process."""

    dlq_name = ""
    modules = ("unpoison.brokers.memory",)

    def __init__(self, folder: Path) -> None:
        super().__init__(f"memory://{folder.name}-{id(self)}", folder)
        self._shifted = 0.0

    def connect(self) -> Broker:
        return MemoryBroker(self.url, clock=lambda: time.time() + self._shifted)

    def shift_clock(self, seconds: float) -> None:
        self._shifted += seconds

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As if the connection had been closed behind its back."""
        assert isinstance(broker, MemoryBroker)
        broker.close()

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        queues = MemoryBroker(self.url).store.queues.values()
        for queue in queues:
            queue.dead = _Full(queue.dead)
        try:
            yield
        finally:
            for queue in queues:
                queue.dead = dict(queue.dead)
