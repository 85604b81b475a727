"""A broker that keeps everything in this process, for tests and for trying things out.

It makes the same promises as the others except one: what it holds ends with the process. Brokers with the same URL share one
store.
"""

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from unpoison.errors import ConfigError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import STORED, WHOLE_BYTES, Capability, Depth, Finding, Published, Ring, Settlement, Waits
from unpoison.port.broker_url import parse
from unpoison.port.reading import first_within
from unpoison.port.sql import LetterIds
from unpoison.port.takeovers import ownership_lost, tell


@dataclass
class _Queue:
    """The messages of one source by state. `held` has the broker that holds each."""

    ready: deque[Delivery] = field(default_factory=deque)
    suspects: deque[Delivery] = field(default_factory=deque)
    delayed: list[tuple[float, int, Delivery]] = field(default_factory=list)
    held: dict[int, tuple[object, Delivery]] = field(default_factory=dict)
    dead: dict[int, DeadLetter] = field(default_factory=dict)

    def make_ready(self, delivery: Delivery) -> None:
        (self.suspects if delivery.counters.alone else self.ready).append(delivery)


class _Store:
    """Everything behind one memory:// URL."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.queues: dict[str, _Queue] = {}
        self.version = 0
        self.numbers = itertools.count(1)
        self.rings: dict[object, tuple[Sequence[str], Ring]] = {}

    def queue(self, source: str) -> _Queue:
        return self.queues.setdefault(source, _Queue())

    def put(self, delivery: Delivery, due: float | None) -> None:
        """Add it to its queue, under a new receipt."""
        placed = msgspec.structs.replace(delivery, receipt=next(self.numbers))
        queue = self.queue(delivery.source)
        if due is None:
            queue.make_ready(placed)
        else:
            heapq.heappush(queue.delayed, (due, placed.receipt, placed))
        self.version += 1
        self.changed.notify_all()


FORM = "memory://, or memory://name for one of several"

_STORES: dict[str, _Store] = {}
_STORES_LOCK = threading.Lock()


class MemoryBroker:
    """A broker in this process."""

    capabilities = Capability.FENCED | Capability.ATOMIC | Capability.BROWSE | Capability.EXACT_DEPTH

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        parts = parse(url, FORM)
        if parts.path or parts.query:
            raise ConfigError(f"{parts.shown!r} has more than a name, and memory:// takes only a name. Write {FORM}")
        with _STORES_LOCK:
            self.store = _STORES.setdefault(parts.hosts, _Store())
        self._where, self.clock = parts.shown, clock
        self._bell: threading.Thread | None = None

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        with self.store.changed:
            for source in sources:
                self.store.queue(source)
            if ring is not None:
                self.store.rings[self] = (sources, ring)
                self._bell = threading.Thread(target=self._listen, name="unpoison-memory-bell", daemon=True)
                self._bell.start()
        return ()

    def inherited_fds(self) -> Sequence[int]:
        return ()  # what this broker holds ends with its process

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        now = self.clock()
        with self.store.changed:
            created = {m.source for m in messages} - self.store.queues.keys()
            for m in messages:
                self.store.put(Delivery(0, m.source, m.id, m.body, m.key, m.headers), now + m.delay if m.delay > 0 else None)
        return Published(created=created) if created else STORED

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        with self.store.changed:
            queue = self._due_now(source)
            taken = [queue.ready.popleft() for _ in range(min(limit, len(queue.ready)))]
            queue.held.update((delivery.receipt, (self, delivery)) for delivery in taken)
            return taken

    def has_suspect(self, source: str) -> bool:
        with self.store.changed:
            return bool(self._due_now(source).suspects)

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        with self.store.changed:
            queue = self._due_now(source)
            if not queue.suspects:
                return None
            suspect = queue.suspects.popleft()
            marked = msgspec.structs.replace(suspect, counters=suspect.counters.marked(by, self.clock()))
            queue.held[suspect.receipt] = (self, marked)
            return suspect

    def settle(self, settlement: Settlement) -> Sequence[str]:
        now, letter_ids = self.clock(), []
        moved = [dead.delivery for dead in settlement.dead] + [kept.delivery for kept in settlement.kept]
        with self.store.changed:
            for dead in settlement.dead:
                if self._holds(dead.delivery):
                    no = next(self.store.numbers)
                    letter = msgspec.structs.replace(dead.letter, id=f"{dead.delivery.source}-{no}")
                    self.store.queue(dead.delivery.source).dead[no] = letter
                    letter_ids.append(letter.id)
            for kept in settlement.kept:
                if self._holds(kept.delivery):
                    delivery = msgspec.structs.replace(kept.delivery, counters=kept.counters)
                    self.store.put(delivery, now + kept.after if kept.after > 0 else None)
            held = [delivery for delivery in (*settlement.gone, *moved) if self._holds(delivery)]
            for delivery in held:
                del self.store.queue(delivery.source).held[delivery.receipt]
        if len(held) < len(settlement.gone) + len(moved):
            raise ownership_lost(self._where)
        return letter_ids

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        with self.store.changed:
            if not all(map(self._holds, deliveries)):
                raise ownership_lost(self._where)

    def depth(self, source: str) -> Depth:
        with self.store.changed:
            queue, now = self.store.queue(source), self.clock()
            due = sum(moment <= now for moment, _, _ in queue.delayed)
            dead = sum(letter.state == "dead" for letter in queue.dead.values())
            return Depth(len(queue.ready) + len(queue.suspects) + due, len(queue.delayed) - due, len(queue.held), dead)

    def waits(self, source: str) -> Waits:
        with self.store.changed:
            queue = self.store.queue(source)
            others = any(owner is not self for owner, _ in queue.held.values())
            due = queue.delayed[0][0] if queue.delayed else None
            return Waits(due, ("another consumer of this process",) if others else ())

    def close(self) -> None:
        with self.store.changed:
            self.store.rings.pop(self, None)
            for queue in self.store.queues.values():
                mine = [delivery for owner, delivery in queue.held.values() if owner is self]
                if mine:
                    tell(mine[0].source, len(mine), "of this process")
                for delivery in mine:
                    del queue.held[delivery.receipt]
                    self.store.put(msgspec.structs.replace(delivery, counters=delivery.counters.returned()), None)
            self.store.changed.notify_all()

    def _due_now(self, source: str) -> _Queue:
        """The queue, after moving due messages to the ready ones."""
        queue = self.store.queue(source)
        while queue.delayed and queue.delayed[0][0] <= self.clock():
            queue.make_ready(heapq.heappop(queue.delayed)[2])
        return queue

    def _holds(self, delivery: Delivery) -> bool:
        owner, _ = self.store.queue(delivery.source).held.get(delivery.receipt, (None, None))
        return owner is self

    def _listen(self) -> None:
        """Ring after every change, and when the next message is due."""
        seen = -1
        while True:
            with self.store.changed:
                while self in self.store.rings and seen == self.store.version:
                    due = self._next_due()
                    if due is not None and due <= self.clock():
                        break
                    self.store.changed.wait(None if due is None else due - self.clock())
                if self not in self.store.rings:
                    return
                seen = self.store.version
                _, ring = self.store.rings[self]
            ring()

    def _next_due(self) -> float | None:
        sources, _ = self.store.rings[self]
        moments = [queue.delayed[0][0] for queue in map(self.store.queue, sources) if queue.delayed]
        return min(moments, default=None)


class MemoryDeadLetters:
    """The DLQ of one source in this process."""

    def __init__(self, broker: MemoryBroker, source: str) -> None:
        self.broker, self._store, self._source = broker, broker.store, source
        self._ids = LetterIds(source)

    def count(self, state: str = "dead") -> int:
        return len(self.browse(limit=2**62, state=state))

    def freeze(self) -> str:
        with self._store.changed:
            return self._ids.of(max(self._letters, default=0))

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        low, high = self._ids.between(after, until)
        with self._store.changed:
            if only is not None:
                known = [letter for letter in self._letters.values() if state in (None, letter.state)]
                exact = [letter for letter in known if letter.id == only]
                return exact or [letter for letter in known if letter.message.id == only]
            found = (letter for no, letter in self._letters.items() if low < no <= high and state in (None, letter.state))
            return list(itertools.islice(found, limit))

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        with self._store.changed:
            sent = self.remove(letter_ids, keep_as="replayed")
            for letter_id in sent:
                self._send(self._letters[self._ids.number(letter_id)])
            return sent

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        changed = []
        with self._store.changed:
            for letter_id in letter_ids:
                letter = self._letters.get(self._ids.number(letter_id))
                if letter is None or letter.state != state:
                    continue
                if keep_as:
                    self._letters[self._ids.number(letter_id)] = msgspec.structs.replace(letter, state=keep_as)
                else:
                    del self._letters[self._ids.number(letter_id)]
                changed.append(letter_id)
        return changed

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        found = self.browse(after=after, limit=limit)
        return [WholeLetter(letter=each) for each in found[: first_within((len(each.body) for each in found), most_bytes)]]

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        with self._store.changed:
            for each in letters:
                self._send(each.letter)
        return STORED

    def _send(self, letter: DeadLetter) -> None:
        m = letter.message
        again = Delivery(0, self._source, m.id, m.body, m.key, m.headers, letter.replayed(), m.is_tombstone)
        self._store.put(again, None)

    @property
    def _letters(self) -> dict[int, DeadLetter]:
        return self._store.queue(self._source).dead
