"""How do messages of one queue get here, and for how long are they ours?

They are received, ten at a time, by several requests at once. When less came than was wanted, one request is left waiting at the
server, as a bell; what it brings waits here. Each message is ours for `visibility` seconds and longer for as long as SQS confirms
that it heard us, up to twelve hours after it was received: that is as long as SQS lets anybody hold one.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from unpoison.brokers.sqs import envelope
from unpoison.brokers.sqs.client import AT_ONCE, LOST, Link, in_tens
from unpoison.brokers.sqs.envelope import Raw
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.model.wording import counted

SURE = 0.8
"""Of the visibility a part is kept back: an answer may be on its way for a while."""

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


class Hold(NamedTuple):
    """Until when a message is ours, by our own clock, and since when."""

    until: float
    since: float


class Taking:
    """One queue, as far as this process takes its messages. Made for consumers and for whoever moves messages on."""

    def __init__(
        self, url: str, link: Link, ring: Callable[[], None], *, wait: int | None = None, beat: float = BEAT, sort: bool = True
    ) -> None:
        self.url, self._link, self._ring = url, link, ring
        self.lasts = SURE * link.address.visibility
        self.buffer: deque[Raw] = deque()
        self.held: dict[str, Hold] = {}
        self._deleted: set[str] = set()
        """Deleted, while the settlement that they belong to is being tried again."""
        self._seconds = link.address.wait if wait is None else wait
        self._beat, self._sort, self._lock = beat, sort, threading.Lock()
        self._wanted, self._ended, self._idle = threading.Event(), threading.Event(), threading.Event()
        self._idle.set()
        self._bell: threading.Thread | None = None
        self._most_at_once, self._is_dry = 1, False
        self._ahead: list[Future[None]] = []
        self._taken_at = time.monotonic()
        self.trouble: UnpoisonError | None = None

    # Called by whoever consumes.

    def take(self, limit: int) -> list[Raw]:
        """What waits here, at most so many."""
        self._taken_at = time.monotonic()
        return [self.buffer.popleft() for _ in range(min(limit, len(self.buffer)))]

    def put_back(self, messages: Sequence[Raw]) -> None:
        """Have these wait here again, as the first."""
        self.buffer.extendleft(reversed(messages))

    def pull(self, limit: int) -> None:
        """Receive until so many wait here, or nothing more comes. Never more: what waits here, others cannot have. Nor for long:
        from a slow server it would come faster than it can be renewed. Nor too much for the memory."""
        self._most_at_once, self._is_dry = min(AT_ONCE, limit), False
        requests = self._link.address.pollers
        enough_at = time.monotonic() + self.lasts / 2
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
        for twelve hours without anybody knowing of it."""
        brought: list[list[Raw]] = [[] for _ in wanted]
        try:
            self._link.all_of([partial(self._receive_into, part, count) for part, count in zip(brought, wanted, strict=True)])
        finally:
            everything = [raw for part in brought for raw in part]
            found += everything
        return everything

    def _receive_into(self, part: list[Raw], count: int) -> None:
        part += self._receive(count, 0)

    def read_ahead(self, limit: int) -> None:
        """Have some wait here for the next time, received while others are at work on what was taken."""
        most = min(limit, AT_ONCE * self._link.address.pollers)
        missing = most - len(self.buffer) - AT_ONCE * len(self._ahead)
        if not self._is_dry:
            self._ahead += [self._link.start(self._receive_ahead) for _ in range(missing // AT_ONCE)]

    def collect(self) -> bool:
        """Have here what was read ahead. It was asked for all at once, and takes as long as one of them. False if nothing was."""
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
        """As `cancel`, and return once no request is under way: what a dead one brings would come to nobody."""
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

    # Who has what.

    def holds(self, handle: str) -> bool:
        known = self.held.get(handle)
        return handle in self._deleted or (known is not None and known.until > time.monotonic())

    @property
    def is_late(self) -> bool:
        """Whether something was held for longer than SQS has promised."""
        now = time.monotonic()
        return any(hold.until <= now and handle not in self._deleted for handle, hold in list(self.held.items()))

    def forget(self, handles: Iterable[str]) -> None:
        with self._lock:
            for handle in handles:
                self.held.pop(handle, None)
                self._deleted.discard(handle)

    def finish(self, handles: Sequence[str]) -> bool:
        """Delete these. False if some were not ours any more. Raises BrokerUnavailable if it is not known of one: it can be
        tried again, and what was deleted is not asked for a second time."""
        left = [handle for handle in handles if handle not in self._deleted]
        lost = [handle for part in self._link.all_of([partial(self._delete, part) for part in in_tens(left)]) for handle in part]
        missing = [handle for handle in left if handle not in self._deleted]
        if missing:
            raise BrokerUnavailable(
                f"SQS did not delete {len(missing)} of {counted(len(handles), 'message')}. They are tried again."
            )
        return not lost

    def _delete(self, handles: Sequence[str]) -> list[str]:
        """Returns those that were lost; somebody else has them, or they are gone."""
        entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
        answer = self._link.ask("delete_message_batch", QueueUrl=self.url, Entries=entries)
        failed = {handles[int(each["Id"])]: each["Code"] for each in answer.get("Failed", ())}
        self._deleted.update(handle for handle in handles if failed.get(handle, LOST[0]) in LOST)
        return [handle for handle, code in failed.items() if code in LOST]

    def give_back(self, handles: Sequence[str], after: float = 0.0) -> None:
        """Others may have these at once, or after so many seconds. SQS counts that as one time more that they were received."""
        held_for = time.monotonic() - min((hold.since for handle in handles if (hold := self.held.get(handle))), default=0.0)
        seconds = max(0, min(math.ceil(after), int(LONGEST_HELD - MARGIN - held_for)))
        self._link.all_of([partial(self._change, part, seconds) for part in in_tens(handles)])
        self.forget(handles)

    def renew(self) -> None:
        """Tell SQS that we are still at work on what we have had for a while."""
        now, visibility = time.monotonic(), self._link.address.visibility
        latest = now + 0.7 * self.lasts
        oldest = now + visibility - (LONGEST_HELD - MARGIN)
        due = [(hold, handle) for handle, hold in list(self.held.items()) if now < hold.until < latest and hold.since >= oldest]
        self._link.all_of([partial(self._keep, part, visibility) for part in in_tens([handle for _, handle in sorted(due)])])

    def _keep(self, handles: Sequence[str], visibility: int) -> None:
        asked_at = time.monotonic()
        failed = self._change(handles, visibility)
        answered_at = time.monotonic()
        with self._lock:
            for handle in handles:
                hold = self.held.get(handle)
                if hold is None:  # it was settled meanwhile
                    continue
                # SQS may say yes although somebody else has it by now: an answer that came too late renews nothing.
                if failed.get(handle) in LOST or answered_at >= hold.until:
                    self.held[handle] = Hold(0.0, hold.since)
                elif handle not in failed:  # else it is ours for as long as it was, and is tried again
                    self.held[handle] = Hold(asked_at + self.lasts, hold.since)

    def _change(self, handles: Sequence[str], visibility: int) -> dict[str, str]:
        """Returns those for which it failed, with the error code of each."""
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": visibility} for number, handle in enumerate(handles)
        ]
        answer = self._link.ask("change_message_visibility_batch", QueueUrl=self.url, Entries=entries)
        return {handles[int(each["Id"])]: each["Code"] for each in answer.get("Failed", ())}

    # The requests themselves.

    def _receive(self, limit: int, seconds: int) -> list[Raw]:
        asked_at = time.monotonic()
        messages = receive(self._link, self.url, limit, visibility=self._link.address.visibility, seconds=seconds)
        since = time.monotonic() if seconds else asked_at  # one that waited there may have got it at any moment
        for raw in messages:
            self.held[raw["ReceiptHandle"]] = Hold(since + self.lasts, since)
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
                self._wanted.clear()  # whoever fetches next finds out, and asks again
            if found:
                self._wanted.clear()
            self._idle.set()
            if found or self.trouble is not None:
                self._ring()
            if self.trouble is not None:
                self._ended.wait(TRY_AGAIN)
            elif not found and not self._seconds:
                self._ended.wait(self._beat)


def receive(link: Link, url: str, limit: int, *, visibility: int, seconds: int = 0) -> list[Raw]:
    """Messages of a queue, with all that is known of them. If there are none it is waited so long for one."""
    answer = link.ask(
        "receive_message",
        QueueUrl=url,
        MaxNumberOfMessages=limit,
        VisibilityTimeout=visibility,
        WaitTimeSeconds=seconds,
        MessageAttributeNames=["All"],
        MessageSystemAttributeNames=envelope.SYSTEM_ATTRIBUTES,
    )
    return list(answer.get("Messages") or ())
