"""The messages that are published: sound orders, and one of each kind of poison. The same seed gives the same bytes."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Content = dict[str, Any]

CUSTOMERS = ("ada", "grace", "edsger", "barbara", "alan", "frances", "donald", "hedy")
ITEMS = ("book", "pen", "mug", "tea", "map")
STREETS = ("Mill Lane", "High Street", "Station Road", "Church Walk", "Harbour Row")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of poison: what is wrong, how its body is made of a sound order, and how it must end.

    `classification` is what the dead letter must say; kinds that heal or are discarded leave no letter.
    """

    name: str
    story: str
    body: Callable[[Content], bytes]
    fate: str
    classification: str | None = None


def encoded(content: Content) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()


def _with(**changes: Any) -> Callable[[Content], bytes]:
    return lambda content: encoded(content | changes)


def _without(field: str) -> Callable[[Content], bytes]:
    return lambda content: encoded({name: value for name, value in content.items() if name != field})


def _dead(name: str, classification: str, story: str, body: Callable[[Content], bytes]) -> Kind:
    return Kind(name, story, body, "dead", classification)


HANGING = _dead("hangs", "timeout", "waits for an answer that never comes", _with(item="import"))
KILLER = _dead("kills its consumer", "lost", "the handler kills the process that talks to the broker", _with(item="script"))

KINDS: tuple[Kind, ...] = (
    _dead("truncated JSON", "invalid", "the sender's disk was full", lambda content: encoded(content)[:-24]),
    _dead(
        "wrong encoding",
        "invalid",
        "Latin-1 where UTF-8 is expected",
        lambda content: json.dumps(content | {"customer": "Zoë"}, ensure_ascii=False).encode("latin-1"),
    ),
    _dead("emoji in ASCII", "permanent", "a label printer that knows ASCII only", _with(address="1 Party Lane 🎉")),
    _dead("missing field", "invalid", "the sender left the quantity out", _without("quantity")),
    _dead("integer overflow", "invalid", "a quantity that fits no 64 bits", _with(quantity=10**20)),
    _dead("too large", "invalid", "more bytes than this app takes", _with(note="very long note " * 400)),
    _dead("deleted record", "permanent", "an item that left the catalogue", _with(item="fax")),
    _dead("bug in the handler", "bug", "guests without a name were forgotten", _with(customer=None)),
    Kind("flaky dependency", "the warehouse hangs up once, then answers", _with(item="lamp"), "done"),
    Kind("rate limit", "the carrier answers 429 with Retry-After", _with(item="piano"), "done"),
    _dead("segfault", "crash", "a native library reads address 0", _with(item="font")),
    _dead("os._exit", "crash", "a library ends the process", _with(item="plugin")),
    _dead("eats memory", "unknown", "far more than a worker may have", _with(item="poster")),
    HANGING,
    Kind("monitoring probe", "the handler says Discard", _with(item="probe"), "discarded"),
    KILLER,
)

FEWEST, MOST = 2 * len(KINDS), 10_000
"""How many messages make a demo."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Everything that is published, in order, and which of it is poison. Orders are numbered from 1."""

    bodies: Sequence[bytes]
    poison: Mapping[int, Kind]


def traffic(messages: int, seed: int) -> Traffic:
    """So many orders, with sound ones behind each poisoned one.

    What hangs comes early, since it takes longest, and what kills the consumer comes last: its outage would be part of the
    time that others take.
    """
    draw = random.Random(seed)  # noqa: S311 - the point is that it can be repeated
    kinds = [kind for kind in KINDS if kind not in (HANGING, KILLER)]
    draw.shuffle(kinds)
    kinds.insert(draw.randrange(4), HANGING)
    places = sorted(draw.sample(range(1, messages * 6 // 10), len(kinds)))
    poison = dict(zip(places, kinds, strict=True)) | {messages * 3 // 4: KILLER}
    bodies = []
    for number in range(1, messages + 1):
        content = _order(number, draw)
        bodies.append(poison[number].body(content) if number in poison else encoded(content))
    return Traffic(bodies, poison)


def _order(number: int, draw: random.Random) -> Content:
    return {
        "id": number,
        "customer": draw.choice(CUSTOMERS),
        "item": draw.choice(ITEMS),
        "quantity": draw.randint(1, 9),
        "address": f"{draw.randint(1, 99)} {draw.choice(STREETS)}",
    }


def message_id(number: int) -> str:
    return f"order-{number:04d}"


def number_of(message: str) -> int:
    return int(message.rpartition("-")[2])
