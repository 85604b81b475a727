"""The `Broker` of the store. The kit settles, renews and gives back; here is what only this store knows."""

import hashlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.contract.folder_adapter import envelope
from tests.contract.folder_adapter.queue import File, Queue, name_of
from unpoison.errors import ConfigError, Refusal
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Dead, Depth, Finding, Published, Refused, Ring
from unpoison.port.broker_url import Options, parse
from unpoison.port.copying.ids import new_letter_id, unique
from unpoison.port.copying.leased_broker import LeasedBroker, publish
from unpoison.port.copying.leased_source import LeasedSource, returned
from unpoison.port.copying.leases import Leases
from unpoison.port.copying.settling import ALL_LET_GO, Item, LetGo, Receipt, Stored
from unpoison.port.copying.suspects import Suspect, start_alone
from unpoison.port.reading import Unreadable, read_one

FORM = "folder:///path/to/folder?visibility=30"
LOST = (
    "This consumer held messages for longer than it had said (visibility in the URL): it was paused. Its results are dropped; "
    "the messages are delivered again."
)
LOOK_EVERY = 0.02


class Folders(NamedTuple):
    """The queues of one source: a replayed letter is a message that is consumed from `replays` and stays in `history`."""

    work: Queue
    suspects: Queue
    replays: Queue
    dead: Queue
    discarded: Queue
    history: Queue
    starts: Queue


def folders(root: Path, source: str) -> Folders:
    return Folders(*(Queue(root / source / name) for name in Folders._fields))


class Subscription:
    """One queue, as far as this process takes its messages: the `Holder` of the kit. A thread of the kit renews a message by
    renaming its file, so nothing else is done with files at that moment."""

    def __init__(self, queue: Queue, visibility: float, kept_in: Queue | None = None) -> None:
        self.queue, self._visibility, self._kept_in = queue, visibility, kept_in
        self.leases = Leases[str](visibility)
        self.held = self.leases.held
        self._names: dict[str, File] = {}
        self._lock = threading.Lock()

    def receive(self, limit: int) -> list[tuple[File, bytes]]:
        with self._lock:
            asked_at = time.monotonic()
            files = self.queue.receive(limit, self._visibility)
            self.leases.take([file.id for file in files], asked_at)
            self._names.update((file.id, file) for file in files)
            return [(file, self.queue.read(file.name)) for file in files]

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        with self._lock:
            lost = [receipt for receipt in receipts if not self._ended(self._names.pop(receipt.handle))]
            self.leases.forget([receipt.handle for receipt in receipts])
        return LetGo(lost=lost) if lost else ALL_LET_GO

    def _ended(self, file: File) -> bool:
        if self._kept_in is None:
            return self.queue.delete(file.name)
        try:
            (self.queue.path / file.name).rename(self._kept_in.path / name_of(0.0, 0, file.id))
        except FileNotFoundError:
            return False
        return True

    def renew(self) -> None:
        with self._lock:
            asked_at = time.monotonic()
            self.leases.renewed([id_ for id_ in self.leases.renewable() if self._hidden(id_, self._visibility)], asked_at)

    def put_aside(self, id_: str, received: int) -> None:
        """As if it had not been received."""
        with self._lock:
            self._hidden(id_, 0.0, received=received)
            self.leases.forget([id_])

    def _hidden(self, id_: str, seconds: float, *, received: int | None = None) -> bool:
        """Have a message for so many seconds from now. False if it is lost."""
        file = self._names[id_]
        name = self.queue.rename(file.name, time.time() + seconds, file.received if received is None else received, id_)
        if name is None:
            self.leases.lose([id_])
            return False
        self._names[id_] = file._replace(name=name)
        return True

    def give_up(self) -> None:
        with self._lock:
            for id_ in self.leases.give_up():
                self._hidden(id_, 0.0)
            self._names.clear()


class Source(LeasedSource):
    """One source: as the kit wants it. Nothing is read ahead, so nothing waits here unfetched."""

    def __init__(self, name: str, there: Folders, visibility: float) -> None:
        super().__init__(name, visibility)
        self.work = Subscription(there.work, visibility)
        self.replays = Subscription(there.replays, visibility, there.history)
        self.suspects = Subscription(there.suspects, visibility)
        self._notes = Notes(there.starts)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        return self.work, self.replays, self.suspects

    def fetch(self, limit: int) -> list[Delivery]:
        found: list[Delivery] = []
        for holder in (self.replays, self.work):
            for file, data in holder.receive(limit - len(found)):
                self.came_back.note(self.name, int(file.received > 1))
                found.append(self._read(holder, file, data))
        self.tell_due()
        return found

    def _read(self, holder: Subscription, file: File, data: bytes) -> Delivery:
        """Reading never raises. What came back from a consumer that vanished may have been running there."""

        def one(data: bytes) -> Delivery:
            delivery = envelope.read(self.name, holder, file, data)
            return msgspec.structs.replace(delivery, counters=returned(delivery.counters, file.received - 1))

        return read_one(data, one, partial(envelope.not_read, self.name, holder, file))

    def has_suspect(self) -> bool:
        return self.suspects.queue.has_one()

    def take_suspect(self, by: str) -> Delivery | None:
        for file, data in self.suspects.receive(1):
            read, not_read = partial(envelope.read, self.name, self.suspects, file), partial(envelope.not_read, self.name)
            delivery = read_one(data, read, partial(not_read, self.suspects, file))
            if isinstance(delivery, Unreadable):
                return delivery  # it is not started
            suspect = Suspect(delivery, delivery.receipt.envelope, file.received - 1)
            put_aside = partial(self.suspects.put_aside, file.id, file.received - 1)
            return start_alone(suspect, by, self._notes, self.came_back, put_aside)
        return None


class Notes:
    """Who started a suspect: `StartNotes` of the kit."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def store(self, stamp: str, note: bytes) -> None:
        self._queue.send(note, id_=f"{_digest(stamp)}-{unique()}")

    def find(self, stamp: str) -> Iterable[bytes]:
        return [self._queue.read(file.name) for file in self._queue.files() if file.id.startswith(_digest(stamp))]


class Client:
    """The folder: a `Client` of the kit. `opened` are the queues of the sources that it was opened for."""

    def __init__(self, root: Path) -> None:
        self.root, self.created = root, set[str]()
        self.opened: list[Folders] = []
        self._create = True

    def open(self, *, create: bool) -> None:
        self._create = create

    def ensure(self, source: str) -> Sequence[Finding]:
        self.opened.append(self.topic(source))
        return ()

    def topic(self, source: str) -> Folders:
        """The queues of the source, created if need be."""
        if not (self.root / source).exists():
            if not self._create:
                where = str(self.root / source)
                raise ConfigError(f"There is no folder {where!r}, and create=False forbids creating it. Create it.")
            self.created.add(source)
        return folders(self.root, source)

    def remake(self, source: str) -> None:
        self.topic(source)

    def close(self) -> None:
        """There is no connection."""


class FolderBroker(LeasedBroker[Client, Source]):
    capabilities = Capability.DURABLE | Capability.SHARED | Capability.FENCED | Capability.BROWSE

    def __init__(self, url: str) -> None:
        parts = parse(url, FORM)
        options = Options(parts, ["visibility"])
        self._visibility = options.seconds("visibility", 30.0, 0.5, 43_200, "It is how long a vanished consumer keeps messages.")
        self.root = Path(parts.path)
        super().__init__(Client(self.root), "The folder", LOST)
        self._ended = threading.Event()

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        self._ended = ended = threading.Event()
        findings = super().open(sources, create=create, ring=ring)
        if ring is not None:
            threading.Thread(target=self._listen, args=[ended], name="folder-bell", daemon=True).start()
        return findings

    def _source(self, name: str) -> Source:
        return Source(name, self.client.topic(name), self._visibility)

    def _publish(self, messages: Sequence[Outgoing]) -> Published:
        return publish(self.client, messages, lambda there, message: (there.work, message), _sent, _why)

    def _store(self, items: Sequence[Item]) -> Stored:
        """A letter of which a crash left one already is not written again."""
        refused: dict[int, str] = {}
        letter_ids: dict[int, str | None] = {}
        for number, item in enumerate(items):
            source, stamp = item.delivery.source, item.delivery.receipt.envelope
            there = folders(self.root, source)
            try:
                if isinstance(item, Dead):
                    ending = f"-{_digest(f'{stamp}:{item.letter.replays}')}"
                    known = next((file.id for file in _letters(there) if file.id.endswith(ending)), None)
                    copy = envelope.copied(item.delivery, item.delivery.counters, item.letter)
                    id_ = known or there.dead.send(copy, id_=new_letter_id("l") + ending)
                    letter_ids[number] = f"{source}-{id_}"
                else:
                    queue = there.suspects if item.counters.alone else there.work
                    queue.send(envelope.copied(item.delivery, item.counters), item.after)
            except OSError as error:
                refused[number] = f"{error}."
        return Stored(refused, letter_ids)

    def depth(self, source: str) -> Depth:
        there, now = folders(self.root, source), time.time()
        files = [file for queue in (there.work, there.replays, there.suspects) for file in queue.files()]
        hidden = [file for file in files if file.visible_at > now]
        leased = sum(file.received > 0 for file in hidden)
        return Depth(len(files) - len(hidden), len(hidden) - leased, leased, len(there.dead.files()))

    def close(self) -> None:
        self._ended.set()
        super().close()

    def _listen(self, ended: threading.Event) -> None:
        """Ring while there is something that can be received."""
        while not ended.wait(LOOK_EVERY):
            if any(queue.has_one() for each in self.client.opened for queue in (each.work, each.replays, each.suspects)):
                self.wake()


def _sent(messages: Sequence[tuple[Queue, Outgoing]]) -> dict[int, OSError]:
    """Store these; returns why some are not stored."""
    refused: dict[int, OSError] = {}
    for number, (queue, message) in enumerate(messages):
        try:
            queue.send(envelope.published(message), message.delay)
        except OSError as error:
            refused[number] = error
    return refused


def _why(error: OSError) -> Refused:
    return Refused(Refusal.NO_ROOM, f"The folder did not store it: {error}.")


def _letters(there: Folders) -> Iterator[File]:
    for queue in (there.dead, there.replays, there.history, there.discarded):
        yield from queue.files()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
