"""How are the faults of PostgreSQL caused?"""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg

from tests.contract.cutting_proxy import CuttingProxy, opened_through
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.brokers.postgresql.owner import take_over
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Broker
from unpoison.testing import Lab

_numbers = itertools.count()

_REFUSE = """
create function refuse() returns trigger language plpgsql as $$ begin raise 'no dead letter can be stored'; end $$;
create trigger refuse before insert on unpoison_dead execute function refuse()
"""


class PostgreSQLLab(Lab):
    """A schema of its own in a database that tests share."""

    dlq_name = ""
    modules = (
        *(f"unpoison.brokers.postgresql.{name}" for name in ("broker", "deadletters", "owner", "rows")),
        "unpoison.port.sql",
    )
    readers = tuple(f"unpoison.brokers.postgresql.rows.{name}" for name in ("_new_ones", "_waiting_ones"))

    def __init__(self, folder: Path, server: str) -> None:
        self._schema = f"lab_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"create schema {self._schema}")
        super().__init__(f"{server}?options={quote(f'-c search_path={self._schema}')}", folder)

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As a takeover by a consumer that finds the owner gone."""
        assert isinstance(broker, PostgreSQLBroker)
        with psycopg.connect(self.url) as connection:
            assert take_over(connection, broker._owner.no)

    def refused_message(self, broker: Broker) -> Outgoing:
        """PostgreSQL's text cannot hold this character."""
        return Outgoing("a\x00b", "orders", b"x")

    def losing_answers(self, marker: bytes) -> AbstractContextManager[Broker]:
        return opened_through(CuttingProxy(self.url, marker, b"COMMIT"), PostgreSQLBroker)

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_REFUSE)
            try:
                yield
            finally:
                connection.execute("drop trigger refuse on unpoison_dead")
                connection.execute("drop function refuse")

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"drop schema {self._schema} cascade")
