"""Who started a message that must run alone, and never ended?

The server counts such starts; it does not know whose they were. So each is noted in the queue `<queue>.starts` before it
begins, and looked up if the message comes back. Nothing is decided by these notes: they are for whoever reads the letter.
"""

import time

import msgspec

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.connection import IN_USE, Refused
from unpoison.brokers.rabbitmq.queue_pass import taken_and_put_back
from unpoison.brokers.rabbitmq.topology import Topology, starts_of
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.model.message import Counters
from unpoison.port.serialization import UNREADABLE

LOOKS, LOOK_AGAIN = 10, 0.02
"""How often the notes are looked for, and the seconds in between."""


class Start(msgspec.Struct, frozen=True):
    """One start of one message, alone in its consumer."""

    stamp: str
    by: str
    at: float


def note(source: str, start: Start) -> Copy:
    return Copy("", starts_of(source), properties.write(None, []), msgspec.json.encode(start))


def lost(topology: Topology, source: str, stamp: str, counters: Counters, times: int) -> Counters:
    """Counters of a message that was started alone so many times, since it was last stored, and never came to an end."""
    if times < 1:
        return counters
    latest = _noted(topology, source, stamp, times)[-times:]
    counters = msgspec.structs.replace(counters, losses=counters.losses + times - len(latest))
    for start in latest:
        counters = counters.marked(start.by, start.at)
    return counters


def _noted(topology: Topology, source: str, stamp: str, times: int) -> list[Start]:
    """Starts of this message, the latest last. Another consumer may have all notes in hand for a moment."""
    noted: list[Start] = []
    for tries in range(LOOKS):
        if tries:
            time.sleep(LOOK_AGAIN)
        try:
            found = taken_and_put_back(topology.link, starts_of(source), exclusive=True)
        except Refused as refused:
            if IN_USE in refused.text:
                continue
            return []  # no such queue, or no right to read it: the count of the server holds without notes
        noted = sorted((each for arrived in found if (each := _read(arrived.body)) and each.stamp == stamp), key=_moment)
        if len(noted) >= times:
            break
    return noted


def _moment(start: Start) -> float:
    return start.at


def _read(body: bytes) -> Start | None:
    try:
        return msgspec.json.decode(body, type=Start)
    except UNREADABLE:
        return None
