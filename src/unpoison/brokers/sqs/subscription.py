"""Receive the messages of one queue, and hold them.

They are received, ten at a time, by several requests at once. When less came than was wanted, one request is left waiting at the
server, as a bell; what it brings waits here. Each message is ours for `visibility` seconds, and for longer while SQS confirms
that it heard us, up to twelve hours after it was received: SQS lets nobody hold a message for longer.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from functools import partial

from unpoison.brokers.sqs import envelope
from unpoison.brokers.sqs.connection import AT_ONCE, LOST, Connection, delete, hide, in_tens
from unpoison.brokers.sqs.envelope import Raw
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.model.wording import counted
from unpoison.port.copying.leases import Leases
from unpoison.port.copying.settling import LetGo, Receipt

LONGEST_HELD = 43_200
MARGIN = 60
"""Seconds before the end of those twelve hours at which a message counts as lost."""

BEAT = 0.1
"""Seconds between two questions where none waits at the server."""

A_MOMENT = 0.3
"""Seconds in which a message that we have just stored comes back with the waiting request, if it does."""

TRY_AGAIN = 1.0

PULL_BYTES = 16 * 1024 * 1024
"""Bytes of bodies after which no more are received. Several requests are under way at once, and each may bring ten megabytes."""


class Subscription:
    """One queue, as far as this process takes its messages."""

    def __init__(
        self,
        url: str,
        connection: Connection,
        ring: Callable[[], None],
        *,
        wait: int | None = None,
        beat: float = BEAT,
        sort: bool = True,
    ) -> None:
        self.url, self._connection, self._ring = url, connection, ring
        self.leases = Leases[str](connection.address.visibility, LONGEST_HELD - MARGIN)
        self.held = self.leases.held
        self.buffer: deque[Raw] = deque()
        self._seconds = connection.address.wait if wait is None else wait
        self._beat, self._sort = beat, sort
        self._wanted, self._ended, self._idle = threading.Event(), threading.Event(), threading.Event()
        self._idle.set()
        self._bell: threading.Thread | None = None
        self._most_at_once, self._is_dry = 1, False
        self._ahead: list[Future[None]] = []
        self._taken_at = time.monotonic()
        self.trouble: UnpoisonError | None = None

    # Called by the consumer.

    def take(self, limit: int) -> list[Raw]:
        """What waits here, at most so many."""
        self._taken_at = time.monotonic()
        return [self.buffer.popleft() for _ in range(min(limit, len(self.buffer)))]

    def put_back(self, messages: Sequence[Raw]) -> None:
        """Have these wait here again, as the first."""
        self.buffer.extendleft(reversed(messages))

    def hold(self, messages: Sequence[Raw]) -> None:
        """Have these wait here again, in the order of the queue."""
        if not messages:
            return
        waiting = [*messages, *(self.buffer.popleft() for _ in range(len(self.buffer)))]
        self.put_back(sorted(waiting, key=envelope.sent_at if self._sort else envelope.sequence))

    def pull(self, limit: int) -> None:
        """Receive until so many wait here, or nothing more comes. Never more: what waits here, others cannot have. Nor for long:
        from a slow server it would come faster than it can be renewed. Nor too much for the memory."""
        self._most_at_once, self._is_dry = min(AT_ONCE, limit), False
        requests = self._connection.address.pollers
        enough_at = time.monotonic() + self.leases.lasts / 2
        found: list[Raw] = []
        weight = 0
        try:
            while (missing := limit - len(self.buffer) - len(found)) > 0:
                wanted = [min(AT_ONCE, missing - start) for start in range(0, missing, AT_ONCE)][:requests]
                brought = self._received_at_once(wanted, found)
                weight += sum(len(raw["Body"]) for raw in brought)
                if not brought or weight > PULL_BYTES or time.monotonic() > enough_at:
                    break
                if len(brought) < sum(wanted):
                    requests = 1  # there is hardly more
        finally:
            self._arrived(found)

    def _received_at_once(self, wanted: Sequence[int], found: list[Raw]) -> list[Raw]:
        """By several requests. If one fails, `found` has what the others brought all the same: it is ours, and would be renewed
        for twelve hours without being consumed."""
        brought: list[list[Raw]] = [[] for _ in wanted]
        try:
            self._connection.all_of(
                [partial(self._receive_into, part, count) for part, count in zip(brought, wanted, strict=True)]
            )
        finally:
            everything = [raw for part in brought for raw in part]
            found += everything
        return everything

    def _receive_into(self, part: list[Raw], count: int) -> None:
        part += self._receive(count, 0)

    def read_ahead(self, limit: int) -> None:
        """Receive some for the next time, while handlers are at work on what was taken."""
        most = min(limit, AT_ONCE * self._connection.address.pollers)
        missing = most - len(self.buffer) - AT_ONCE * len(self._ahead)
        if not self._is_dry:
            self._ahead += [self._connection.start(self._receive_ahead) for _ in range(missing // AT_ONCE)]

    def collect(self) -> bool:
        """Wait for what was read ahead. It was asked for all at once, and takes as long as one request. False if nothing was."""
        ahead, self._ahead = self._ahead, []
        wait_for(ahead)
        for future in ahead:
            future.result()
        return bool(ahead)

    def _receive_ahead(self) -> None:
        found = self._receive(AT_ONCE, 0)
        self._is_dry = self._is_dry or len(found) < AT_ONCE
        self._arrived(found)
        self._ring()

    def listen(self) -> None:
        """From now on a request waits at the server, until it has brought something."""
        self._wanted.set()
        if self._bell is None:
            self._bell = threading.Thread(target=self._wait_for_more, name="unpoison-sqs-bell", daemon=True)
            self._bell.start()

    @property
    def is_listening(self) -> bool:
        return self._wanted.is_set()

    def settle_down(self) -> None:
        """Wait a moment for the request that is under way: it may have what we have just stored."""
        self._idle.wait(A_MOMENT)

    def cancel(self) -> None:
        """No further request. The one that waits may still bring something, which then waits here."""
        self._wanted.clear()

    def close(self) -> None:
        """As `cancel`, and return once no request is under way: what it would bring later would be lost for a while."""
        self._ended.set()
        self._wanted.set()
        if self._bell is not None:
            self._bell.join()
            self._bell = None
        self._wanted.clear()
        with suppress(UnpoisonError):
            self.collect()

    def is_left_alone(self, after: float) -> bool:
        return bool(self.buffer) and time.monotonic() - self._taken_at > after

    # What is held: a `Holder` of the kit.

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        """Delete these. What SQS did not answer for is tried again, and what was deleted is not asked for a second time."""
        outcomes = self._connection.all_of([partial(self._delete, part) for part in in_tens(receipts)])
        unknown = [receipt for outcome in outcomes for receipt in outcome.unknown]
        lost = [receipt for outcome in outcomes for receipt in outcome.lost]
        self.leases.forget([receipt.handle for receipt in set(receipts).difference(unknown)])
        error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if unknown and error is None:
            error = BrokerUnavailable(
                f"SQS did not delete {len(unknown)} of {counted(len(receipts), 'message')}. They are tried again."
            )
        return LetGo(unknown, lost, error)

    def _delete(self, receipts: Sequence[Receipt]) -> LetGo:
        try:
            failed = delete(self._connection, self.url, [receipt.handle for receipt in receipts])
        except BrokerUnavailable as error:
            return LetGo(receipts, error=error)
        left = [receipt for receipt in receipts if receipt.handle in failed]
        lost = [receipt for receipt in left if failed[receipt.handle] in LOST]
        return LetGo([receipt for receipt in left if receipt not in lost], lost)

    def delete(self, handles: Sequence[str]) -> None:
        """As `let_go`, for messages that never became deliveries."""
        if (error := self.let_go([Receipt(self, handle) for handle in handles]).error) is not None:
            raise error

    def give_back(self, handles: Sequence[str], after: float = 0.0) -> None:
        """Let others have these at once, or after so many seconds. SQS counts that as one time more that they were received."""
        seconds = max(0, min(math.ceil(after), int(min(self.leases.left(handles), LONGEST_HELD))))
        self._connection.all_of([partial(hide, self._connection, self.url, part, seconds) for part in in_tens(handles)])
        self.leases.forget(handles)

    def give_up(self) -> None:
        """Return what is still ours at once, as from a consumer that vanished."""
        self.buffer.clear()
        self.give_back(self.leases.give_up())

    def renew(self) -> None:
        """Tell SQS that we are still at work on what we have had for a while."""
        due = self.leases.renewable(within=0.7 * self.leases.lasts)
        self._connection.all_of([partial(self._keep, part) for part in in_tens(due)])

    def _keep(self, handles: Sequence[str]) -> None:
        asked_at = time.monotonic()
        failed = hide(self._connection, self.url, handles, self._connection.address.visibility)
        self.leases.renewed([handle for handle in handles if handle not in failed], asked_at)
        self.leases.lose([handle for handle, code in failed.items() if code in LOST])

    # The requests themselves.

    def _receive(self, limit: int, seconds: int) -> list[Raw]:
        asked_at = time.monotonic()
        messages = receive(self._connection, self.url, limit, visibility=self._connection.address.visibility, seconds=seconds)
        since = time.monotonic() if seconds else asked_at  # one that waited there may have got it at any moment
        self.leases.take([raw["ReceiptHandle"] for raw in messages], since)
        return messages

    def _arrived(self, found: list[Raw]) -> None:
        self.buffer.extend(sorted(found, key=envelope.sent_at) if self._sort else found)

    def _wait_for_more(self) -> None:
        """In a thread of its own."""
        while not self._ended.is_set():  # close() may have rung before we cleared `_wanted` below
            self._wanted.wait()
            if self._ended.is_set():
                return
            self._idle.clear()
            found: list[Raw] = []
            try:
                found = self._receive(self._most_at_once, self._seconds)
                self._arrived(found)
                self.trouble = None
            except UnpoisonError as error:
                self.trouble = error
                self._wanted.clear()  # the next fetch finds out, and asks again
            if found:
                self._wanted.clear()
            self._idle.set()
            if found or self.trouble is not None:
                self._ring()
            if self.trouble is not None:
                self._ended.wait(TRY_AGAIN)
            elif not found and not self._seconds:
                self._ended.wait(self._beat)


def receive(
    connection: Connection, url: str, limit: int, *, visibility: int, seconds: int = 0, more: Sequence[str] = ()
) -> list[Raw]:
    """Messages of a queue, with all that is known of them, and `more` system attributes. If there are none the request waits so
    long for one."""
    answer = connection.ask(
        "receive_message",
        QueueUrl=url,
        MaxNumberOfMessages=limit,
        VisibilityTimeout=visibility,
        WaitTimeSeconds=seconds,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=[*envelope.SYSTEM_ATTRIBUTES, *more],
    )
    return list(answer.get("Messages") or ())
