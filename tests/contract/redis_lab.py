"""How are the faults of Redis caused?"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from servers.redis import Redis as Server
from unpoison.brokers.redis import scripts
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.message import Delivery
from unpoison.ports import Broker
from unpoison.testing import Lab


class RedisLab(Lab):
    """A database and a user of its own."""

    modules = tuple(f"unpoison.brokers.redis.{name}" for name in ("broker", "deadletters", "publishing"))
    readers = tuple(f"unpoison.brokers.redis.envelope.{name}" for name in ("_entries", "_waiting"))

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._user = f"lab-{uuid.uuid4().hex[:12]}"
        self._permit("~*")
        fresh = urlsplit(server.fresh())
        super().__init__(fresh._replace(netloc=f"{self._user}:secret@{fresh.netloc.rpartition('@')[2]}").geturl(), folder)

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As a takeover by a consumer that finds the owner gone."""
        assert isinstance(broker, RedisBroker)
        source = deliveries[0].source
        other = RedisBroker(self.url)
        other.open([source])
        try:
            name = broker._presence(source).name
            ((taken, *_),) = other._ask(source, scripts.INHERIT(other.keys(source), "unpoison", "", "-", 30000, name))
            assert taken.decode() == name
        finally:
            other.close()

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        """Somebody took away the right to write to the dead letters."""
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
        with self._server.client(urlsplit(self._server.url)._replace(path=urlsplit(self.url).path).geturl()) as client:
            client.flushdb()
            client.execute_command("ACL", "DELUSER", self._user)
