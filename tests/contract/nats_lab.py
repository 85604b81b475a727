"""How are the faults of NATS caused?"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from servers.nats import NATS
from tests.contract.cutting_proxy import CuttingProxy, opened_through
from unpoison.brokers.nats import wire
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.url import address
from unpoison.model.message import Delivery, Native, Outgoing
from unpoison.port.broker import Broker, Capability
from unpoison.testing import Lab
from unpoison.testing.given import PLAIN_ID
from unpoison.testing.isolation.diary import wait_until

ACK_WAIT, SHORT_ACK_WAIT = 30.0, 1.5
"""Seconds after which the server takes back what a killed consumer held. Only tests that wait for that have the short time: on a
busy machine any consumer may be silent for so long, and would lose its messages."""


class NATSLab(Lab):
    """An account of its own."""

    modules = (
        *(
            f"unpoison.brokers.nats.{name}"
            for name in ("broker", "source", "mover", "client", "deadletters", "foreign_dlq", "claims", "writing", "subscription")
        ),
        *(f"unpoison.port.copying.{name}" for name in ("leased_broker", "settling")),
    )
    readers = tuple(f"unpoison.brokers.nats.envelope.{name}" for name in ("look", "plain"))

    def __init__(self, server: NATS, folder: Path, ack_wait: float = ACK_WAIT) -> None:
        super().__init__(f"{server.fresh()}?ack_wait={ack_wait}", folder)
        self._ack_wait = ack_wait
        # The server does not fence, so the adapter does not claim it; by its own clock it keeps these promises all the same.
        self.capabilities |= Capability.FENCED

    def fill_a_dlq_of_others(self, name: str, bodies: Sequence[bytes]) -> str:
        with closing(Connection(address(self.url))) as connection:
            connection.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"lost.{name}"]}, "making a stream")
            for body in bodies:
                reply, future = connection.expect()
                connection.send(wire.publication(f"lost.{name}".encode(), reply, b"", body))
                connection.wait(future, "publishing")
        return name

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As if this process had been paused: nothing is renewed until the server has taken back what it held."""
        assert isinstance(broker, NATSBroker)
        keeper = broker._keeper
        assert keeper is not None
        renew, keeper._renew = keeper._renew, lambda: None
        for source in broker.known.values():
            for pulled in source.pulled:
                pulled.cancel()  # else what is taken from it would come straight to it again
        try:
            wait_until(
                lambda: not any(each.receipt.holder.held([each.receipt]) for each in deliveries),
                lambda: "It still believes to hold them",
            )
            # The server's promise to us ends a little later than we believe in it, and it does not tell when.
            time.sleep(self._ack_wait)
        finally:
            keeper._renew = renew

    def refused_message(self, broker: Broker) -> Outgoing:
        """An administrator limited the size of messages in the stream of the source."""
        self._limit(100_000, "base")
        return Outgoing(PLAIN_ID, "orders", b"x" * 200_000)

    lasting = ("subject", "stream", "sequence", "timestamp")

    def send_foreign(self, body: bytes, key: bytes, headers: Sequence[tuple[str, bytes]]) -> Native:
        """NATS has no keys."""
        self.broker("orders")
        block = b"NATS/1.0\r\n" + b"".join(b"%s: %s\r\n" % (name.encode(), value) for name, value in headers) + b"\r\n"
        connection = Connection(address(self.url))
        reply, future = connection.expect()
        connection.send(wire.publication(b"orders", reply, block, body))
        assert b"error" not in connection.wait(future, "publishing")[1]
        connection.close()
        return Native(None, tuple(headers), {"subject": "orders", "stream": "orders", "sequence": 1})

    def losing_answers(self, marker: bytes) -> AbstractContextManager[Broker]:
        return opened_through(CuttingProxy(self.url, marker), NATSBroker)

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        """An administrator limited the size of messages in the stream of dead letters."""
        self._limit(1)
        try:
            yield
        finally:
            self._limit(-1)

    def _limit(self, size: int, stream: str = "dlq") -> None:
        broker = self.broker("orders")
        assert isinstance(broker, NATSBroker)
        name = getattr(broker.client.topic("orders").names, stream)
        config = broker.client.connection().ask(f"STREAM.INFO.{name}")["config"]
        broker.client.connection().ask(f"STREAM.UPDATE.{name}", config | {"max_msg_size": size})
