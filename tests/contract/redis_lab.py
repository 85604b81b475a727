"""How are the faults of Redis caused?"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servers.redis import Redis as Server
from tests.contract.cutting_proxy import CuttingProxy, opened_through
from unpoison.brokers.redis import scripts
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.model.message import Delivery, Native, Outgoing
from unpoison.port.broker import Broker
from unpoison.testing import Lab
from unpoison.testing.given import PLAIN_ID


class RedisLab(Lab):
    """A database and a user of its own."""

    modules = tuple(f"unpoison.brokers.redis.{name}" for name in ("broker", "deadletters", "foreign_dlq", "publishing"))
    readers = tuple(f"unpoison.brokers.redis.envelope.{name}" for name in ("_entries", "_waiting"))

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._user = f"lab-{uuid.uuid4().hex[:12]}"
        self._permit("~*")
        fresh = urlsplit(server.fresh())
        super().__init__(fresh._replace(netloc=f"{self._user}:secret@{fresh.netloc.rpartition('@')[2]}").geturl(), folder)

    def fill_a_dlq_of_others(self, name: str, bodies: Sequence[bytes]) -> str:
        with self._client() as client:
            for body in bodies:
                client.execute_command("XADD", name, "*", b"body", body)
        return name

    def _client(self) -> AbstractContextManager[Any]:
        """As another program, in the database of this lab."""
        return self._server.client(urlsplit(self._server.url)._replace(path=urlsplit(self.url).path).geturl())

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As a takeover by a consumer that finds the owner gone."""
        assert isinstance(broker, RedisBroker)
        source = deliveries[0].source
        other = RedisBroker(self.url)
        other.open([source])
        try:
            name = broker._owner(source).name
            ((taken, *_),) = other._ask(source, scripts.TAKE_OVER(other.keys(source), "unpoison", "", "-", 30000, name))
            assert taken.decode() == name
        finally:
            other.close()

    def refused_message(self, broker: Broker) -> Outgoing:
        """Its source is a key that another program uses for something else."""
        with self._client() as client:
            client.set("counter", 1)
        return Outgoing(PLAIN_ID, "counter", b"x")

    lasting = ("fields",)

    def send_foreign(self, body: bytes, key: bytes, headers: Sequence[tuple[str, bytes]]) -> Native:
        self.broker("orders")
        pairs = [(b"key", key), *((name.encode(), value) for name, value in headers)]
        with self._client() as client:
            entry = client.execute_command("XADD", "orders", "*", b"body", body, *(part for pair in pairs for part in pair))
        text = entry.decode() if isinstance(entry, bytes) else entry
        return Native(key, tuple(headers), {"stream_id": text, "fields": [list(pair) for pair in pairs]})

    def losing_answers(self, marker: bytes) -> AbstractContextManager[Broker]:
        return opened_through(CuttingProxy(self.url, marker), RedisBroker)

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        """An administrator took away the right to write to the dead letters."""
        self._permit("~orders*", "~unpoison:*", "%R~dlq:*")
        try:
            yield
        finally:
            self._permit("~*")

    def _permit(self, *keys: str) -> None:
        with self._server.client() as client:
            client.execute_command("ACL", "SETUSER", self._user, "reset", "on", ">secret", "&*", "+@all", *keys)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        with self._client() as client:
            client.flushdb()
            client.execute_command("ACL", "DELUSER", self._user)
