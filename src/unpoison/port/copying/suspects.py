"""Start a message that must run alone, with its start on record.

Servers count how often they handed a message out of the queue of suspects: that is how often it was started since it was last
stored there. They do not know who started it. So each start is noted beside it before it begins, and the notes are looked up when
the message comes back. Nothing is decided by them; a person reads them in the dead letter.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from unpoison.model.message import Counters, Delivery
from unpoison.port.serialization import UNREADABLE
from unpoison.port.takeovers import CameBack


class Start(msgspec.Struct, frozen=True):
    """One start of one message, alone in its consumer. `stamp` names the message."""

    stamp: str
    by: str
    at: float


class StartNotes(Protocol):
    """Where a broker keeps notes of starts."""

    def store(self, stamp: str, note: bytes) -> None:
        """Store this. It is durable when this returns."""

    def find(self, stamp: str) -> Iterable[bytes | str]:
        """The notes about this message, and perhaps others."""


class Suspect(NamedTuple):
    """A message that was taken to run alone."""

    delivery: Delivery
    """With the counters of its envelope."""
    stamp: str
    vanished: int
    """How often it was started since it was last stored, and never ended."""


def start_alone(
    suspect: Suspect,
    by: str,
    notes: StartNotes,
    came_back: CameBack,
    put_aside: Callable[[], None],
    clock: Callable[[], float] = time.time,
) -> Delivery:
    """The delivery with all starts that are on record; the one that begins now is on record too when this returns.

    If that fails the message is not started: `put_aside` sees to it that it can be taken again.
    """
    delivery, told = suspect.delivery, suspect.delivery.counters
    try:
        starts = read_starts(notes.find(suspect.stamp), suspect.stamp) if suspect.vanished else []
        counters = with_vanished(told, suspect.vanished, starts)
        notes.store(suspect.stamp, msgspec.json.encode(Start(suspect.stamp, by, clock())))
    except BaseException:
        put_aside()
        raise
    came_back.note_suspect(delivery.source, told, counters)
    return msgspec.structs.replace(delivery, counters=counters)


def with_vanished(counters: Counters, vanished: int, starts: list[Start]) -> Counters:
    """Counters of a message with the starts that never ended. The server's count holds, whether there are notes or not."""
    latest = starts[-vanished:] if vanished else []
    counters = msgspec.structs.replace(counters, alone=True, losses=counters.losses + vanished - len(latest))
    for start in latest:
        counters = counters.marked(start.by, start.at)
    return counters


def read_starts(notes: Iterable[bytes | str], stamp: str) -> list[Start]:
    """The starts of one message, the latest last. What is no note of ours is left out."""
    found: list[Start] = []
    for note in notes:
        with suppress(*UNREADABLE):
            found.append(msgspec.json.decode(note, type=Start))
    return sorted((start for start in found if start.stamp == stamp), key=lambda start: start.at)
