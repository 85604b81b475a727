"""Which envelopes may another program write, or an enemy? Every header of ours, with junk of every type that a broker carries."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

KINDS = ("done", "dead", "again")
"""What the handler does with a message: return, refuse it for good, or fail in a way that is tried again."""

NESTED = '{"a":' * 3000 + "1" + "}" * 3000

NUMBERS = ["0", "1", "2", "3", "-1", "99", "1e3", "1e308", "1e999", "nan", "inf", "-inf", "9" * 30, "9" * 5000, "²", "٣", "0x1"]
TEXTS = [
    "",
    " ",
    "null",
    "true",
    "[]",
    "{}",
    '"x"',
    "[[[",
    NESTED,
    "\x00",
    "a\r\nb",
    "/",
    "a/²/1@1",
    "//@",
    "orders/0/1@1",
    "-1/²",
]
COUNTERS = [
    {"attempts": 1},
    {"attempts": 99},
    {"vanished": 2},
    {"alone": True},
    {"fresh": True, "vanished": 1},
    {"losses": 1, "alone": True},
    {"attempts": -5},
    {"attempts": "3"},
    {"attempts": 2**70},
    {"interrupted": 2**70},
    {"replays": 2**40},
    {"vanished": 10**6},
    {"first_failed_at": 1e300},
    {"first_failed_at": -1},
    {"first_failed_at": 1},
    {"history": [{"attempt": 1, "at": 1e300, "classification": "x", "error": "y"}]},
    {"history": [1, 2]},
    {"history": None, "alone": None},
]
LETTERS = [
    {},
    {"attempts": "x"},
    {"attempts": 1, "classification": "bug", "rule": "r", "reason": "r", "error_type": "E", "error": "e"},
    {
        "attempts": 2**70,
        "classification": "bug",
        "rule": "r",
        "reason": "r",
        "error_type": "E",
        "error": "e",
        "first_failed_at": 1e300,
        "last_failed_at": -1e300,
    },
]
ODD_BYTES = [b"\xff\xfe", b"\xed\xa0\x80", b"\x00", b"\x80" * 300]

SIMPLE = [b"", b"1", NESTED.encode(), b"\xff\xfe"]

CHARACTERS = [*map(chr, range(256)), "€", "世", "😀", "\u2028", "\ufeff"]

# Not st.text or st.binary: these also try constants of whatever modules are loaded, so each run would have other examples.
some_bytes = st.lists(st.sampled_from(range(256)), max_size=10).map(bytes)
numbers = st.sampled_from(NUMBERS)
texts = st.one_of(
    numbers,
    st.sampled_from(TEXTS),
    st.sampled_from(COUNTERS).map(json.dumps),
    st.sampled_from(LETTERS).map(json.dumps),
    st.lists(st.sampled_from(CHARACTERS), max_size=20).map("".join),
)
junk = st.one_of(texts.map(lambda text: text.encode("utf-8", "surrogatepass")), st.sampled_from(ODD_BYTES), some_bytes)

STEADY = settings(
    max_examples=1,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""The same example in every run: a whole batch, which is sent and consumed at once."""

BATCH = 40


@dataclass(frozen=True)
class Envelope:
    """One message: what the handler is to do with it, what follows in its body (None: a body of another kind), and the rest."""

    kind: str
    tail: Any
    key: Any
    fields: tuple[tuple[Any, Any], ...]

    def body(self, number: int) -> Any:
        """Unique, and without a character that base64 has."""
        return f"{self.kind}-{number}-".encode() + self.tail if isinstance(self.tail, bytes) else self.tail


def envelopes(fields: st.SearchStrategy[Any], *, tails: Any = None, keys: Any = None) -> st.SearchStrategy[list[Envelope]]:
    """A batch. `fields` makes one header or field; some are absent, some are there twice."""
    several = st.lists(st.one_of(fields, fields.map(lambda each: (each, each))), max_size=5)
    flat = several.map(lambda found: tuple(pair for each in found for pair in (each if isinstance(each[0], tuple) else (each,))))
    tails = some_bytes if tails is None else tails
    made = st.tuples(st.sampled_from(KINDS), tails, junk if keys is None else keys, flat).map(lambda parts: Envelope(*parts))
    # The first batch that hypothesis tries is the simplest one, with nothing in any envelope.
    return st.lists(made, min_size=BATCH, max_size=BATCH).filter(lambda batch: any(each.fields for each in batch))


def each_alone(names: list[Any], values: list[Any]) -> list[Envelope]:
    """Every header with every value, as the only one of its message: some are read in a quick way that knows no others."""
    pairs = [(name, value) for name in names for value in values]
    # Letters with the same stamp are one letter that a crash has left twice, so those that forge one are not made letters here.
    kinds = ["done" if "stamp" in str(name) else KINDS[number % 2] for number, (name, _) in enumerate(pairs)]
    return [Envelope(kind, b"", None, (pair,)) for kind, pair in zip(kinds, pairs, strict=True)]
