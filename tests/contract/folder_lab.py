"""How are the faults of a folder of files caused?"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.contract.folder_adapter.broker import FolderBroker
from tests.contract.folder_adapter.queue import Queue
from unpoison.brokers import ADAPTERS, Adapter
from unpoison.model.message import Delivery
from unpoison.port.broker import Broker
from unpoison.testing import Lab
from unpoison.testing.isolation.diary import wait_until

HERE = "tests.contract.folder_adapter"
ADAPTER = Adapter(f"{HERE}.broker", "FolderBroker", f"{HERE}.deadletters", "FolderDeadLetters", doctor=f"{HERE}.deadletters")


class FolderLab(Lab):
    """A folder of its own."""

    dlq_name = ""
    modules = (
        *(f"{HERE}.{name}" for name in ("broker", "deadletters", "queue")),
        *(f"unpoison.port.copying.{name}" for name in ("leased_broker", "settling")),
    )
    readers = (f"{HERE}.envelope.read",)

    def __init__(self, folder: Path, visibility: float = 30.0) -> None:
        ADAPTERS["folder"] = ADAPTER
        self._root = folder / "queues"
        super().__init__(f"folder://{self._root}?visibility={visibility}", folder)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        del ADAPTERS["folder"]  # other tests speak of every adapter that is known

    def steal(self, broker: Broker, deliveries: Sequence[Delivery]) -> None:
        """As if this process had been paused: nothing is renewed until another can have the messages."""
        assert isinstance(broker, FolderBroker)
        keeper = broker._keeper
        assert keeper is not None
        renew, keeper._renew = keeper._renew, lambda: None
        try:
            wait_until(lambda: broker.depth(deliveries[0].source).leased == 0, lambda: "They are still hidden")
        finally:
            keeper._renew = renew

    @contextmanager
    def dead_letters_unwritable(self) -> Iterator[None]:
        """The disk under them is full."""
        send = Queue.send

        def send_if_there_is_room(queue: Queue, data: bytes, delay: float = 0.0, id_: str | None = None) -> str:
            if queue.path.name == "dead":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return send(queue, data, delay, id_)

        with patch.object(Queue, "send", send_if_there_is_room):
            yield
