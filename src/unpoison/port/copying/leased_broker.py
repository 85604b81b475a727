"""A broker whose server takes messages back when it hears nothing of their consumer.

What is the same for each such server is here: one call at a time, sources that are renewed by a thread, given back when nobody
fetches them, and settled by copies. An adapter adds what only its server knows: a `Client`, which has what a source needs there;
a `LeasedSource`, which takes its messages; and how copies are stored.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost, PayloadError, Refusal, UnpoisonError
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import STORED, Finding, Kept, Published, Refused, Ring, Settlement, not_sent, without_source
from unpoison.port.copying.leased_source import LeasedSource
from unpoison.port.copying.leases import Keeper, all_in_turn
from unpoison.port.copying.settling import Copies, Item, Receipt, Settler, Stored, by_holder, handed_back

GIVE_BACK_AFTER = 2.0
"""Seconds that a message waits here unfetched before others may have it."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Made = TypeVar("Made")
No = TypeVar("No")


class Client(Protocol[T_co]):
    """One user of the server, from open() to close(), and what it knows of sources there."""

    @property
    def created(self) -> set[str]:
        """Sources that were not there before, until publishing has said so."""

    def open(self, *, create: bool) -> None:
        """Connect, or do so when it is needed. Without `create` nothing is made at the server."""

    def ensure(self, source: str) -> Sequence[Finding]:
        """Have what the source needs."""

    def topic(self, source: str) -> T_co:
        """What the source has there: looked for, and made if need be, the first time."""

    def remake(self, source: str) -> None:
        """Create again what was deleted, unless create=False forbids it."""

    def close(self) -> None:
        """Give the connection up."""


C = TypeVar("C", bound=Client[object])
S = TypeVar("S", bound=LeasedSource)


class LeasedBroker(ABC, Generic[C, S]):
    """What a `Broker` does for its consumer. `server` is for errors, `lost` says what it means that messages were lost."""

    gone: tuple[type[BrokerUnavailable], ...] = ()
    """What is raised if a queue, stream or consumer is not there any more."""

    def __init__(self, client: C, server: str, lost: str) -> None:
        self.client, self._lost_text = client, lost
        self._settler = Settler(Copies(server, self._store), self._lost, self._give_back_in_place)
        self._lock = threading.RLock()
        """Held during each call of the consumer."""
        self._ring: Ring = lambda: None
        self.known: dict[str, S] = {}
        self._published: set[str] = set()
        self._paused: set[str] = set()
        self._unreturned: dict[str, Sequence[Delivery]] = {}
        """By source: what was taken to be given back, which failed. It is renewed, and nobody else knows of it."""
        self._keeper: Keeper | None = None

    @abstractmethod
    def _source(self, name: str) -> S:
        """The source, when its first message is asked for."""

    @abstractmethod
    def _store(self, items: Sequence[Item]) -> Stored:
        """Store copies of these; returns once the server has answered for each."""

    @abstractmethod
    def _publish(self, messages: Sequence[Outgoing]) -> Published: ...

    def _give_back_in_place(self, kept: Sequence[Kept]) -> Collection[Receipt]:
        """Give some of these back without a copy. Returns the receipts of these."""
        return ()

    def inherited_fds(self) -> Sequence[int]:
        return ()

    def wake(self) -> None:
        """Ring: there may be something to fetch, or to find out."""
        self._ring()

    @contextmanager
    def _calling(self, *sources: str) -> Iterator[None]:
        """One call of the consumer, about these sources. What was deleted there meanwhile is created again."""
        with self._lock:
            try:
                yield
            except self.gone as gone:
                for source in sources:
                    self.client.remake(source)
                raise BrokerUnavailable(f"{gone} It was created again: the next try finds it.") from None

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self.client.open(create=create)
        self._ring = ring or self._ring
        try:
            findings = [finding for source in sources for finding in self.client.ensure(source)]
        except BaseException:
            self.close()
            raise
        self.client.created.clear()
        return findings

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        outcome = self._publish(messages)
        if len(outcome.refused) < len(messages):
            self._published |= {message.source for message in messages}
        return outcome

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self._calling(source):
            if limit <= 0:
                return ()
            self._check(source)
            known = self._known(source)
            known.verify()
            self._check(source)
            if source in self._published:
                self._published.discard(source)
                known.has_published()
            return known.fetch_paused(limit) if known.is_paused else known.fetch(limit)

    def pause(self, source: str) -> None:
        """What cannot be handed back now is handed back later, as anything that nobody fetches."""
        with self._calling(source):
            self._paused.add(source)
            if (known := self.known.get(source)) is not None:
                known.is_paused = True
                self._give_back(known)

    def resume(self, source: str) -> None:
        with self._lock:
            self._paused.discard(source)
            if (known := self.known.get(source)) is not None:
                known.is_paused = False

    def has_suspect(self, source: str) -> bool:
        with self._calling(source):
            self._check(source)
            return self._known(source).has_suspect()

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self._calling(source):
            self._check(source)
            return self._known(source).take_suspect(by)

    def settle(self, settlement: Settlement) -> Sequence[str | None]:
        with self._calling(*self.known):
            self._verify()
            for name in handed_back(settlement.kept) & self.known.keys():
                self.known[name].stop_listening()
            return self._settler.settle(settlement)

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self._calling(*{delivery.source for delivery in deliveries}):
            self._verify()
            if not self._settler.holds(deliveries):
                raise self._lost()
            for holder, _ in by_holder([delivery.receipt for delivery in deliveries]):
                holder.renew()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Give everything back."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()  # without the lock: it may be waiting for it
        with self._lock:
            self._paused.clear()
            for known in self.known.values():
                known.is_paused = False
                known.close()
                with suppress(UnpoisonError):
                    self._give_back(known)
                with suppress(UnpoisonError):  # also what could not be given back as it was
                    known.give_up()
            self.known.clear()
            self._unreturned.clear()
            self.client.close()

    def _check(self, name: str) -> None:
        """Raise if something was held for too long. Called before the server is asked anything: a silent one would be waited for,
        while the lost messages run on."""
        if (known := self.known.get(name)) is not None and known.is_late:
            raise self._lost(known)

    def _known(self, name: str) -> S:
        self.client.topic(name)  # over a new connection it is looked for again
        if name not in self.known:
            self.known[name] = self._source(name)
            self.known[name].is_paused = name in self._paused
        if self._keeper is None:
            shortest = min(known.promised for known in self.known.values())
            self._keeper = Keeper(shortest / 4, self._renew, self._look_after)
        return self.known[name]

    def _verify(self) -> None:
        for known in self.known.values():
            known.verify()

    def _renew(self) -> None:
        all_in_turn(known.renew for known in list(self.known.values()))

    def _look_after(self) -> None:
        """Now and then: was something held for too long, and does something wait here that nobody fetches?"""
        all_in_turn(partial(self._look_at, known) for known in list(self.known.values()))

    def _look_at(self, known: S) -> None:
        if known.is_late:
            self.wake()
        after = 0.0 if known.is_paused else GIVE_BACK_AFTER
        if not (known.name in self._unreturned or known.is_left_alone(after)):
            return
        if self._lock.acquire(blocking=False):  # who has it is at work; to wait for it would keep us from renewing
            try:
                if self._keeper is not None:
                    self._return_rest(known)
                    if known.is_left_alone(after):
                        self._give_back(known)
            finally:
                self._lock.release()

    def _give_back(self, known: S) -> None:
        self._return_rest(known)
        for deliveries in known.unfetched():
            self._unreturned[known.name] = deliveries
            self._return_rest(known)

    def _return_rest(self, known: S) -> None:
        """Give back what was taken for that. If it fails the rest is tried again the next time."""
        self._settler.give_back(self._unreturned.get(known.name, ()))
        self._unreturned.pop(known.name, None)

    def _lost(self, *lost: S) -> OwnershipLost:
        """Told once. The consumer drops its results, so what is still ours goes back too."""
        for known in lost or [each for each in self.known.values() if each.is_late]:
            self._unreturned.pop(known.name, None)
            with suppress(UnpoisonError):
                known.give_up()
        self._settler.forget_lost()
        return OwnershipLost(self._lost_text)


def publish(
    client: Client[T],
    messages: Sequence[Outgoing],
    make: Callable[[T, Outgoing], Made],
    store: Callable[[list[Made]], Mapping[int, No]],
    why: Callable[[No], Refused | str],
    denied: tuple[type[BrokerUnavailable], ...] = (),
) -> Published:
    """Store messages, and say what became of each. Raises only what `store` raises, if nothing was sent.

    `make` makes what is stored, of what the source has and the message. `why` says of one that was not stored whether that is
    certain (`Refused`); a text is why it is not known. `denied` are errors that say that we may not create a source.
    """
    topics: dict[str, T] = {}
    refused = without_source(messages, lambda source: topics.update({source: client.topic(source)}))
    made: dict[int, Made] = {}
    for number, message in enumerate(messages):
        if number not in refused:
            try:
                made[number] = make(topics[message.source], message)
            except PayloadError as error:
                refused[number] = not_sent(error, Refusal.TOO_LARGE)
            except BrokerUnavailable as error:
                refused[number] = not_sent(error)

    def send(numbers: Sequence[int]) -> dict[int, Refused | str]:
        failed = store([made[number] for number in numbers]) if numbers else {}
        return {numbers[index]: why(no) for index, no in failed.items()}

    failed = send(list(made))
    if any(_is(no, Refusal.NO_SUCH_SOURCE) for no in failed.values()):  # it was deleted since: once more, to a new one
        again = [number for number, no in failed.items() if _is(no, Refusal.NO_SUCH_SOURCE, Refusal.NOT_SENT)]
        try:
            for source in {messages[number].source for number in again}:
                client.remake(source)
            failed = {number: no for number, no in failed.items() if number not in again} | send(again)
        except (ConfigError, BrokerUnavailable) as error:
            refusal = Refusal.NOT_PERMITTED if isinstance(error, denied) else Refusal.NO_SUCH_SOURCE
            missed = [number for number in again if _is(failed[number], Refusal.NO_SUCH_SOURCE)]
            failed |= dict.fromkeys(missed, Refused(refusal, str(error)))
    created = tuple(client.created)
    client.created.clear()
    refused |= {number: no for number, no in failed.items() if isinstance(no, Refused)}
    unknown = {number: no for number, no in failed.items() if isinstance(no, str)}
    return Published(refused, unknown, created) if refused or unknown or created else STORED


def _is(no: Refused | str, *refusals: Refusal) -> bool:
    return isinstance(no, Refused) and no.refusal in refusals
