"""Write a dead letter as a message that every tool can read, and read it back.

The body is the original body, the sender's headers are the sender's headers; what is known about the failure is JSON in the
header `x-unpoison-letter`, with the gist in headers of its own. A message that RabbitMQ itself or another program dead-lettered
is read as a letter too (foreign.py).
"""

import hashlib
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from unpoison.brokers.rabbitmq import envelope, foreign, properties
from unpoison.brokers.rabbitmq.envelope import COUNTERS, LETTER, MOST_HEADERS, RECORD, STATE, Envelope
from unpoison.brokers.rabbitmq.names import suspects_of
from unpoison.brokers.rabbitmq.properties import Header, header, json_text, text_of
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.model.dead_letter import DeadLetter, counters_of_replay
from unpoison.model.message import Counters, Message
from unpoison.port import serialization
from unpoison.port.foreign.told import Told
from unpoison.port.reading import read_one
from unpoison.port.serialization import UNREADABLE, letter_of


def written(letter: DeadLetter, original: Envelope, letter_id: str, state: str = "dead") -> bytes:
    """The properties of a letter."""
    counters = Counters(attempts=letter.attempts, replays=letter.replays)
    letter = msgspec.structs.replace(letter, original={**letter.original, **_route(letter.source, original)})
    return envelope.copied(original, counters, _headers(letter, letter_id, state))


def _route(source: str, original: Envelope) -> dict[str, str | int]:
    """Where the message came from; if that is not known, it was published to its queue like all that unpoison sends."""
    exchange, routing_key = original.route or ("", source)
    expiration: dict[str, str | int] = {} if original.expiration is None else {"expiration": original.expiration}
    return {"exchange": exchange, "routing_key": routing_key, **expiration}


def _headers(letter: DeadLetter, letter_id: str, state: str) -> list[Header]:
    texts = {
        serialization.LETTER_ID: letter_id,
        serialization.STATE: state,
        **serialization.letter_headers(letter, MOST_HEADERS // 2),
    }
    return [header(name.encode(), content) for name, content in texts.items()]


class Found(msgspec.Struct):
    """A letter in its queue, with what is needed to send it again. `told` is what another system says about it."""

    original: Envelope
    letter: DeadLetter
    told: Told | None = None


def read(source: str, arrived: Arrived, states: Collection[str] = ("dead",)) -> Found:
    """A letter in one of these states. What tells of another is left from an earlier life of the message: RabbitMQ itself
    dead-lettered one that had been sent again."""
    original = envelope.opened_safely(arrived)
    headers = {each.name: each.value for each in original.properties.headers.entries}
    if _is_left_over(source, headers, states):
        headers = {name: content for name, content in headers.items() if name not in (RECORD, LETTER, STATE)}
    record, told = text_of(headers, RECORD), None
    if not serialization.is_ours(record):
        told = foreign.told(source, headers, arrived.body)
        original = foreign.opened(original, told)
    message = Message(original.id, source, foreign.body(arrived.body, told), original.key, original.headers)
    letter = letter_of(
        record,
        message,
        lambda: foreign.letter(message, original, told),
        id_=_own_id(headers) or _foreign_id(source, arrived, headers, original.stamp),
        state=text_of(headers, STATE) or "dead",
    )
    return Found(original, letter, told)


def _is_left_over(source: str, headers: Mapping[bytes, bytes], states: Collection[str]) -> bool:
    """Whether what it says of a letter is no longer true. A letter of ours has no `x-death`: one that RabbitMQ dead-lettered from
    the source had been moved back there by another tool."""
    return STATE in headers and (
        text_of(headers, STATE) not in states or (_DEATH in headers and envelope.last_death(headers).get("queue") == source)
    )


class SentBack(NamedTuple):
    """A letter on its way back to the queue that it came from."""

    queue: str
    properties: bytes
    body: bytes


def sent_back(source: str, arrived: Arrived, letter_id: str, history: str | None = None) -> SentBack:
    """A letter that is sent again, and stored in `history` as well. Without that it tells nothing of the letter any more."""
    made = read_one(arrived, lambda arrived: _ours_again(arrived, letter_id, history), lambda *_: None)
    if made is None:
        found = read(source, arrived)
        if found.told is not None:
            made = _again(found, letter_id, history)
            queue = foreign.origin(source, found.told)
            return SentBack(suspects_of(queue) if made.alone and queue == source else queue, made.properties, found.letter.body)
        made = again(source, arrived, letter_id, history)
    return SentBack(suspects_of(source) if made.alone else source, made.properties, arrived.body)


class SentAgain(NamedTuple):
    """A letter on its way back to its source, with its body as it is."""

    alone: bool
    properties: bytes


def again(source: str, arrived: Arrived, letter_id: str, history: str | None) -> SentAgain:
    """Its properties."""
    ours = read_one(arrived, lambda arrived: _ours_again(arrived, letter_id, history), lambda *_: None)
    if ours is not None:
        return ours
    return _again(read(source, arrived), letter_id, history)


def _again(found: Found, letter_id: str, history: str | None) -> SentAgain:
    counters = found.letter.replayed()
    noted = [] if history is None else [envelope.also_to(history), *_headers(found.letter, letter_id, "replayed")]
    return SentAgain(counters.alone, envelope.copied(found.original, counters, noted))


def _ours_again(arrived: Arrived, letter_id: str, history: str | None) -> SentAgain | None:
    """The short way for a letter that we wrote: most of its headers go on as they are. A replay of many spends most of its time
    here. May raise."""
    like = properties.read(arrived.properties)
    headers = dict(like.headers.entries)
    if not headers.keys() >= _WRITTEN or _DEATH in headers or headers[STATE] != _DEAD:
        return None
    known = _decoded_gist(json_text(headers[RECORD]))
    counters = counters_of_replay(known.classification, known.replays)
    dropped = _RENEWED if history else _OF_THE_LETTER
    entries = [each for each in like.headers.entries if each[0] not in dropped and not each[0].startswith(_NOT_COPIED)]
    if history:
        entries.append(header(LETTER, letter_id))
    entries += _renewed(counters, history)
    return SentAgain(counters.alone, properties.write(like.id, entries, like))


@lru_cache(maxsize=64)
def _renewed(counters: Counters, history: str | None) -> tuple[Header, ...]:
    """The same for most letters of a replay."""
    noted = (envelope.also_to(history), header(STATE, "replayed")) if history else ()
    return (*envelope.counters_headers(counters), *noted)


class _Gist(msgspec.Struct):
    """What of a letter's record a replay depends on."""

    classification: str
    replays: int = 0


_DEAD = header(STATE, "dead").value
_decoded_gist = msgspec.json.Decoder(_Gist).decode
_WRITTEN = frozenset((RECORD, LETTER, STATE, envelope.STAMP))
_RENEWED = frozenset((LETTER, STATE, COUNTERS, envelope.ATTEMPTS, *envelope.ROUTING))
_OF_THE_LETTER = _RENEWED.union((RECORD, *(name.encode() for name in serialization.GIST)))
_NOT_COPIED = (*envelope.BROKERS, envelope.DIGIT)


class Brief(NamedTuple):
    """What a letter is found by."""

    id: str
    message_id: str
    state: str
    identity: object


def brief(source: str, arrived: Arrived, states: Collection[str] = ("dead",)) -> Brief:
    """As `read` has it, without reading anything else: a pass over many letters spends most of its time here."""

    def from_all_of_it(arrived: Arrived, _: Exception) -> Brief:
        found = read(source, arrived, states)  # never raises
        return Brief(found.letter.id, found.original.id, found.letter.state, None)

    return read_one(arrived, lambda arrived: _brief(source, arrived, states), from_all_of_it)


def _brief(source: str, arrived: Arrived, states: Collection[str]) -> Brief:
    """May raise."""
    like = properties.read(arrived.properties)
    found = {name: value for name, value in like.headers.entries if name in _BRIEF}
    is_ours = not _is_left_over(source, found, states)
    state = (text_of(found, STATE) if is_ours else None) or "dead"
    stamp = text_of(found, envelope.STAMP)
    id_ = (_own_id(found) if is_ours else "") or _foreign_id(source, arrived, found, stamp)
    message_id = text_of(found, envelope.LONG_ID) if envelope.LONG_ID in found else like.id
    if message_id is None:
        message_id = stamp or envelope.look(arrived, like).id
    return Brief(id_, message_id, state, (stamp, _replays(found)) if stamp else None)


def _replays(headers: Mapping[bytes, bytes]) -> int:
    """How often the message was replayed: one that was replayed and died again is another letter."""
    if COUNTERS not in headers:
        return 0
    try:
        return _decoded_replays(json_text(headers[COUNTERS])).replays
    except UNREADABLE:
        return 0  # another program wrote the header


class _Replays(msgspec.Struct):
    replays: int = 0


_decoded_replays = msgspec.json.Decoder(_Replays).decode
_DEATH = b"x-death"
_BRIEF = frozenset((STATE, LETTER, envelope.STAMP, envelope.LONG_ID, COUNTERS, _DEATH))


def _own_id(headers: Mapping[bytes, bytes]) -> str:
    """The id that we gave it. An empty one is not ours: pages could not go on behind it."""
    return text_of(headers, LETTER) or ""


def _foreign_id(source: str, arrived: Arrived, headers: Mapping[bytes, bytes], stamp: str | None) -> str:
    """The id of a letter that RabbitMQ or another program wrote: by its message's stamp and replays, so that equal bodies are
    different letters and one that was replayed and came back is a new one; without a stamp by all that is known of it."""
    replays = b"%d" % _replays(headers) if stamp else b""
    known = (stamp.encode(), replays) if stamp else (arrived.body, headers.get(_DEATH, b""))
    digest = hashlib.blake2b(digest_size=8)
    for each in known:
        digest.update(b"%d:" % len(each) + each)
    return f"{source}-{0:014x}{digest.hexdigest()}"
