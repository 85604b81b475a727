import datetime
import decimal
import enum
import itertools
import json
import os
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unpoison.body import payload
from unpoison.body.guard import decoder
from unpoison.body.payload import encode, new_id, new_ids
from unpoison.errors import PayloadError

LOWEST, HIGHEST = -9223372036854775808, 18446744073709551615
NAN, INFINITY = float("nan"), float("inf")


class Order(msgspec.Struct):
    id: int
    total: Any = 1.5


@dataclass
class Parcel:
    id: int
    inner: Any = None


class Model(pydantic.BaseModel):
    id: int = 1
    total: float = 1.5
    made: datetime.date = datetime.date(2026, 1, 2)


class Loose(pydantic.BaseModel):
    model_config = {"ser_json_inf_nan": "constants"}
    total: float


class Colour(enum.Enum):
    RED = "red"


class Ratio(float):
    pass


class Text(str):
    __slots__ = ()


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


def refusal(value: Any) -> str:
    with pytest.raises(PayloadError) as caught:
        encode(value)
    return str(caught.value)


@pytest.mark.parametrize("body", [b"", b"\xff\x00raw", bytearray(b"ab"), memoryview(b"abc")[::2]])
def test_bytes_are_sent_as_they_are(body):
    sent = encode(body)
    assert type(sent) is bytes
    assert sent == bytes(body)


def test_text_is_sent_as_utf8_and_not_as_json():
    assert encode('grün "x"') == 'grün "x"'.encode()
    assert encode(Text("a")) == b"a"


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ({"id": 1, "total": 9.99}, b'{"id":1,"total":9.99}'),
        (None, b"null"),
        ({"a": None, "b": "null", "c": [1.5, (None,)]}, b'{"a":null,"b":"null","c":[1.5,[null]]}'),
        ([HIGHEST, LOWEST, 1e300, -1e308], b"[18446744073709551615,-9223372036854775808,1e300,-1e308]"),
        ([None, 1.7976931348623157e308, -1.7976931348623157e308], b"[null,1.7976931348623157e308,-1.7976931348623157e308]"),
        ({"id": "123456789012345678901234567890"}, b'{"id":"123456789012345678901234567890"}'),
        (Order(1), b'{"id":1,"total":1.5}'),
        (Parcel(1), b'{"id":1,"inner":null}'),
        (Model(), b'{"id":1,"total":1.5,"made":"2026-01-02"}'),
        ({"m": [Model()]}, b'{"m":[{"id":1,"total":1.5,"made":"2026-01-02"}]}'),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), b'"2026-01-02T00:00:00Z"'),
        (decimal.Decimal("1.10"), b'"1.10"'),
        (uuid.UUID(int=0), b'"00000000-0000-0000-0000-000000000000"'),
        (Colour.RED, b'"red"'),
        ([Ratio(1.5), Text("a")], b'[1.5,"a"]'),
    ],
)
def test_anything_else_is_sent_as_json(value, body):
    assert encode(value) == body


@pytest.mark.parametrize(
    ("value", "path", "number"),
    [
        (NAN, "payload", "nan"),
        ([1.0, NAN], "payload[1]", "nan"),
        ({"a": None, "b": {"c": [0, -INFINITY]}}, "payload['b']['c'][1]", "-inf"),
        (Order(1, INFINITY), "payload['total']", "inf"),
        (Parcel(1, {"x": (NAN,)}), "payload['inner']['x'][0]", "nan"),
        (Model(total=NAN), "payload['total']", "nan"),
        ({"m": Loose(total=NAN)}, "payload['m']['total']", "nan"),
        ([Ratio("nan")], "payload[0]", "nan"),
        ([2**70, NAN], "payload[1]", "nan"),
    ],
)
def test_nan_and_infinity_are_refused_with_their_place(value, path, number):
    assert refusal(value).startswith(f"{path} is {number}, and JSON has no such number.")


@pytest.mark.parametrize("number", [HIGHEST + 1, LOWEST - 1, 10**30])
@pytest.mark.parametrize(
    "wrap", [lambda n: n, lambda n: {"a": [n]}, Order, lambda n: Model(id=n)], ids=["bare", "nested", "struct", "model"]
)
def test_an_integer_beyond_64_bits_is_refused(number, wrap):
    said = refusal(wrap(number))
    assert "does not fit into 64 bits" in said
    assert str(number)[:10] in said


def test_an_integer_too_long_to_print_is_refused_like_any_other():
    with pytest.raises(PayloadError):
        encode({"a": 10**5000})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a\ud800", "lone surrogate at index 1"),
        ({"a": "\udfff"}, "payload['a'] cannot be sent as JSON"),
        (object, "of type 'type'"),
        ({"a": [1, {"b": 1j}]}, "payload['a'][1]['b'] cannot be sent as JSON: 1j of type 'complex'"),
        (Order(1, [range(3)]), "payload['total'][0] cannot be sent as JSON: range(0, 3) of type 'range'"),
        (Parcel(1, {1j}), "payload['inner'][0]"),
        ({"a": {(1, 2): 1}}, "payload['a'] cannot be sent as JSON: {(1, 2): 1} of type 'dict'"),
        ((n for n in [1]), "of type 'generator'"),
        ({"a": Broken()}, "Broken"),
    ],
    ids=["surrogate", "inner surrogate", "class", "complex", "range", "set", "key", "generator", "broken repr"],
)
def test_what_has_no_json_form_is_refused_with_its_place_and_type(value, said):
    assert said in refusal(value)


def test_what_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append({"again": loop})
    assert "contains itself" in refusal(loop)


def test_a_generator_is_refused_before_anything_is_taken_from_it():
    numbers = (n for n in [1, 2])
    refusal({"numbers": numbers})
    assert list(numbers) == [1, 2]


def test_the_payload_is_left_as_it_is():
    value = {"a": [None, {"b": (1, 2)}], "m": Model()}
    before = repr(value)
    encode(value)
    assert repr(value) == before


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(LOWEST, HIGHEST) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
).filter(lambda value: not isinstance(value, str))
decode = decoder(None, None, max_body=None, max_depth=64)


@settings(deadline=None)
@given(JSON_VALUES)
def test_every_json_value_in_range_reaches_the_receiver_as_it_was_sent(value):
    assert decode(encode(value)) == value


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    )
)
def test_a_value_is_refused_exactly_if_strict_json_refuses_it(value):
    if isinstance(value, str):
        return
    try:
        json.dumps(value, allow_nan=False).encode()
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        with pytest.raises(PayloadError):
            encode(value)
    else:
        assert json.loads(encode(value)) == value


def test_ids_are_uuids_of_version_7_with_the_time_in_front():
    before = time.time_ns() // 1_000_000
    ids = [*new_ids(500), *(new_id() for _ in range(500))]
    after = time.time_ns() // 1_000_000
    for text in ids:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)
        assert before <= parsed.int >> 80 <= after


def test_every_free_bit_of_an_id_is_drawn():
    for ids in (new_ids(2000), [new_id() for _ in range(2000)]):
        free = (1 << 76) - 1 & ~(0b11 << 62)
        ever_set = ever_clear = 0
        for text in ids:
            ever_set |= uuid.UUID(text).int & free
            ever_clear |= ~uuid.UUID(text).int & free
        assert ever_set == ever_clear == free
        assert all(300 < count < 700 for count in Counter(text[19] for text in ids).values())  # 500 each, give or take 10 sigma


def test_ids_are_unique():
    ids = new_ids(50_000) + [new_id() for _ in range(50_000)]
    assert len(set(ids)) == 100_000
    assert new_ids(0) == []


def test_ids_sort_by_the_millisecond_they_were_made_in(monkeypatch):
    clock = itertools.count(1_700_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr(payload, "time_ns", lambda: next(clock))
    ids = list(itertools.chain.from_iterable((new_id(), new_ids(1)[0]) for _ in range(200)))
    assert ids == sorted(ids)


def test_a_forked_process_draws_other_ids():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "\n".join(new_ids(100)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        theirs = pipe.read().split()
    os.waitpid(child, 0)
    assert len(theirs) == 100
    assert not set(theirs) & set(new_ids(100))
