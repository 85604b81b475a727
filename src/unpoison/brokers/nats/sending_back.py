"""What is needed to send a message when the DLQ no longer has its letter, and how is it sent then?

It goes back as a retry does: into the stream of retries of the group that gave it up, among what is to be started again or, if it
must run alone, among the suspects. Only that group takes it from there, a consumer that is made later too, and once it is done
nothing is left of it. Among the replays it would stay in the DLQ for good, as the history of a letter that is not there, and a
consumer gets no replay that was stored before it was made itself.

Such a message is named after the place of its letter, which no other letter ever has. Sent again because no answer came, it is
stored once; when the message has died again, that is a new letter with another place.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from unpoison.brokers.nats import envelope, foreign
from unpoison.brokers.nats.client import Client
from unpoison.brokers.nats.copies import Found
from unpoison.brokers.nats.envelope import MESSAGE_ID, Seen, line
from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.stream_reading import Looked
from unpoison.brokers.nats.url import is_group
from unpoison.brokers.nats.writing import Copy, No, why
from unpoison.errors import PayloadError, Refusal
from unpoison.model.dead_letter import WholeLetter
from unpoison.model.message import NO_HEADERS, UNTRIED
from unpoison.port.broker import STORED, Published, Refused, not_sent
from unpoison.port.reading import as_text, read_one, text_or_bytes


class Native(msgspec.Struct, array_like=True):
    """What only this adapter reads of a letter that is elsewhere."""

    place: str
    """Where the letter stood in its stream."""
    group: str
    origin: str
    """The subject that the message came from; empty if that is the source."""
    stamp: str
    block: bytes
    """What the sender wrote, line by line."""
    carrier: bytes | None = None
    """The body that another program put into the DLQ, if the message is inside of it: it may say more than the letter shows."""


def whole(source: str, each: Looked, found: Found) -> WholeLetter:
    """A letter with all that `send_back` needs."""
    letter = found.letter
    native = Native(
        place=str(each.place),
        group=found.group,
        origin=foreign.origin(source, found.told) or "",
        stamp=found.seen.stamp,
        block=envelope.block(envelope.kept(found.block)),
        carrier=None if each.body == letter.body else each.body,
    )
    headers = tuple((as_text(name), text_or_bytes(value)) for name, value in envelope.pairs(each.block))
    return WholeLetter(letter=letter, headers=headers, native=msgspec.msgpack.encode(native))


def send_back(client: Client, source: str, letters: Sequence[WholeLetter]) -> Published:
    """Send the messages of these. Raises only if nothing was sent."""
    return send_back_each(client, lambda _: source, letters)


def send_back_each(
    client: Client, source_of: Callable[[WholeLetter], str | Refused], letters: Sequence[WholeLetter]
) -> Published:
    """The same of letters of several sources."""
    limit = client.connection().max_payload
    made = {number: read_one(each, partial(_copy, source_of, limit), _unreadable) for number, each in enumerate(letters)}
    refused = {number: each for number, each in made.items() if isinstance(each, Refused)}
    copies = {number: each for number, each in made.items() if isinstance(each, Copy)}
    numbers, unknown = list(copies), dict[int, str]()
    for index, no in client.store(list(copies.values())).items():
        number = numbers[index]
        told = _why(copies[number], no)
        if isinstance(told, Refused):
            refused[number] = told
        else:
            unknown[number] = told
    return Published(refused, unknown) if refused or unknown else STORED


def _copy(source_of: Callable[[WholeLetter], str | Refused], limit: int, whole: WholeLetter) -> Copy | Refused:
    """What is stored for it. May raise."""
    native, letter = msgspec.msgpack.decode(whole.native or b"", type=Native), whole.letter
    if not is_group(native.group):
        return _cannot(f"{native.group!r} is no name of a group, so that nobody would get it.", Refusal.UNFIT)
    if native.origin and (wrong := foreign.wrong_origin(native.origin)):
        return _cannot(wrong, Refusal.NO_SUCH_SOURCE)
    source = source_of(whole)
    if isinstance(source, Refused):
        return source
    names, counters = Names(source, native.group), letter.replayed()
    seen = Seen(letter.message.id, None, NO_HEADERS, native.stamp, UNTRIED)
    block = envelope.copied(seen, native.block, counters, [line(MESSAGE_ID, f"{native.place}:{letter.replays}")])
    size = len(block) + len(letter.body)
    if size > limit:
        told = f"it has {size:,} bytes with its headers, and this NATS server takes {limit:,} at most. Raise its max_payload."
        return _cannot(told, Refusal.TOO_LARGE)
    return Copy(native.origin or (names.suspects if counters.alone else names.again), block, letter.body)


def _unreadable(_: WholeLetter, error: Exception) -> Refused:
    """A guess could bring it to a group that did not give it up."""
    told = (
        f"what the store has of its native form cannot be read ({type(error).__name__}: {error}), so it is not known which group "
        f"gave it up and what its headers were. Publish its body by hand: unpoison publish"
    )
    return _cannot(told, Refusal.UNFIT)


def _why(copy: Copy, no: No) -> Refused | str:
    """Why it is not stored, or as text why that is not known."""
    told = why(no)
    if not isinstance(told, Refused):
        return told
    way_out = ""
    if told.refusal is Refusal.NO_SUCH_SOURCE:
        way_out = " Make one that does; those of a group its consumer makes when it starts."
    return _cannot(f"it goes to the subject {copy.subject!r}. {told.reason}{way_out}", told.refusal)


def _cannot(told: str, refusal: Refusal) -> Refused:
    return not_sent(PayloadError(f"The letter cannot be sent back: {told}"), refusal)
