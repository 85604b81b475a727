"""Look through a queue, although SQS shows nothing without handing it out.

Everything is received and hidden from others for a while, and then put back. Requests hold ten messages at most, so many of them
are under way at once. SQS tells how many there are, about; a question for more that finds nothing may be wrong before that number
is reached, so there it waits for a second at the server.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from functools import partial

from unpoison.brokers.sqs.connection import AT_ONCE, LOST, Denied, NoQueue, Refused, delete, hide, in_tens
from unpoison.brokers.sqs.envelope import CAME_FROM, Raw
from unpoison.brokers.sqs.subscription import receive
from unpoison.brokers.sqs.topology import Client
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.port.broker import Progress

HIDE = 10
Receive = Callable[[Raw], None]


class QueuePass:
    """Takes what is in a queue, each message once. `receive` is given each, by the calling thread."""

    def __init__(self, client: Client, url: str, until: float, receive: Receive) -> None:
        self._client, self._url, self._until, self._receive = client, url, until, receive
        self.total, _, self.held_by_others = client.counts(url)
        self._silent: BrokerUnavailable | None = None
        self.handles: dict[str, str] = {}
        """What was taken, by message id, with the latest handle of it."""

    def take(self, most: int | None = None, progress: Progress | None = None) -> None:
        """Return once so many are taken, or nothing more can be received.

        Ends when the time is over, whatever is left: what was taken first can be received again from then on, for ever.
        """
        under_way: set[Future[list[Raw]]] = set()
        nothing = 0
        try:
            while time.monotonic() < self._until and (most is None or len(self.handles) < most):
                missing = max(0, (self.total if most is None else min(most, self.total)) - len(self.handles))
                width = max(1, min(self._client.connection.width, -(-missing // AT_ONCE)))
                if nothing >= width:
                    break
                while len(under_way) < width:
                    under_way.add(self._client.connection.start(partial(self._ask, 1 if missing else 0)))
                ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
                before = len(self.handles)
                while ended:
                    under_way.discard(future := ended.pop())
                    nothing = 0 if self._taken(future.result()) else nothing + 1
                if progress and len(self.handles) > before:
                    progress(len(self.handles), max(self.total, len(self.handles)))
        finally:
            for future in under_way:  # what comes after another request has failed is taken too, or nobody would put it back
                with suppress(UnpoisonError):
                    self._taken(future.result())

    def _ask(self, seconds: int) -> list[Raw]:
        visibility = max(1, int(self._until - time.monotonic()))
        with self._noting_silence():
            told = (CAME_FROM,)
            return receive(self._client.connection, self._url, AT_ONCE, visibility=visibility, seconds=seconds, more=told)

    def _taken(self, brought: Sequence[Raw]) -> bool:
        for raw in brought:
            is_new = raw["MessageId"] not in self.handles
            self.handles[raw["MessageId"]] = raw["ReceiptHandle"]
            if is_new:
                self._receive(raw)
        return bool(brought)

    def let_go(self, message_ids: Sequence[str], tries: int = 1) -> list[str]:
        """Delete these. Returns those that are not deleted: SQS did not want to, or it took so long that others may have them."""
        parts = [partial(self._delete_ten, part) for part in in_tens(message_ids)]
        left = [each for part in self._client.connection.all_of(parts) for each in part]
        for message_id in set(message_ids).difference(left):
            self.handles.pop(message_id, None)
        return self.let_go(left, tries - 1) if left and tries > 1 else left

    def _delete_ten(self, message_ids: Sequence[str]) -> list[str]:
        with self._noting_silence():
            failed = delete(self._client.connection, self._url, [self.handles[each] for each in message_ids])
        return [each for each in message_ids if self.handles[each] in failed]

    def put_back(self) -> None:
        """Others see again what was not deleted."""
        handles, self.handles = list(self.handles.values()), {}
        self._client.connection.all_of([partial(self._show, part) for part in in_tens(handles)])

    def _show(self, handles: list[str], tries: int = 2) -> None:
        """What is gone meanwhile stays gone; what SQS could not show is tried again, or the next one who looks would miss it."""
        with self._noting_silence():
            failed = hide(self._client.connection, self._url, handles, 0)
        hidden = [handle for handle, code in failed.items() if code not in LOST]
        if hidden and tries > 1:
            self._show(hidden, tries - 1)

    @contextmanager
    def _noting_silence(self) -> Iterator[None]:
        """One request. Where one had no answer the next hundreds are not tried: each would be waited for. A refusal is an
        answer, and what was taken before it has to be put back."""
        if self._silent is not None:
            raise self._silent
        try:
            yield
        except (Denied, NoQueue, Refused):
            raise
        except BrokerUnavailable as error:
            self._silent = error
            raise


def look_through(client: Client, url: str, most: int) -> list[Raw]:
    """What is in this queue, or some of it. It stays there."""
    found: list[Raw] = []
    looking = QueuePass(client, url, time.monotonic() + HIDE, found.append)
    if looking.total or looking.held_by_others:  # else SQS says that it is empty, and is believed
        try:
            looking.take(most)
        finally:
            looking.put_back()
    return found
