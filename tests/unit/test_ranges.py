"""A value beyond the range that its schema sets is invalid; a constraint that nobody would check is refused."""

import dataclasses
import sys
from typing import Annotated, NamedTuple, NewType, TypedDict

import annotated_types
import msgspec
import pydantic
import pytest

from unpoison import App, ConfigError
from unpoison.errors import MissingExtra

Small = Annotated[int, msgspec.Meta(ge=1, le=10)]
SmallForPydantic = Annotated[int, pydantic.Field(ge=1, le=10)]


class Struct(msgspec.Struct):
    n: Small


class Model(pydantic.BaseModel):
    n: int = pydantic.Field(ge=1, le=10)


@dataclasses.dataclass
class Data:
    n: Small


@dataclasses.dataclass
class DataForPydantic:
    n: SmallForPydantic


@dataclasses.dataclass
class Positive:
    n: pydantic.PositiveInt


class Row(TypedDict):
    n: Small


class Pair(NamedTuple):
    n: SmallForPydantic


@dataclasses.dataclass
class Nested:
    rows: list[DataForPydantic | None]


Named = NewType("Named", SmallForPydantic)


def outcome(annotation, body, schema=None):
    """What became of one message: "done", or the classification of its dead letter; and whether the handler was started."""
    app, started = App("memory://ranges"), []

    def handle(payload):
        started.append(payload)

    handle.__annotations__ = {"payload": annotation}
    app.consumer("orders", schema=schema)(handle)
    app.publish("orders", body)
    app.run(until_empty=True)
    letters = app.dlq("orders").peek()
    for letter in letters:
        app.dlq("orders").discard(letter.id)
    app.close()
    return (letters[0].classification if letters else "done"), bool(started)


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Struct, b'{"n": 10}', b'{"n": 11}'),
        (Struct, b'{"n": 1}', b'{"n": 18446744073709551615}'),
        (Model, b'{"n": 10}', b'{"n": 0}'),
        (Model, b'{"n": 1}', b'{"n": 9223372036854775808}'),
        (Data, b'{"n": 10}', b'{"n": 11}'),
        (DataForPydantic, b'{"n": 10}', b'{"n": 11}'),
        (Positive, b'{"n": 1}', b'{"n": 0}'),
        (Row, b'{"n": 10}', b'{"n": 11}'),
        (Pair, b"[10]", b"[11]"),
        (Nested, b'{"rows": [{"n": 1}, null]}', b'{"rows": [{"n": 1}, {"n": 11}]}'),
        (Small, b"10", b"11"),
        (SmallForPydantic, b"10", b"11"),
        (list[SmallForPydantic], b"[1, 10]", b"[1, 11]"),
        (Named, b"10", b"11"),
        (Annotated[int, annotated_types.Le(10)], b"10", b"11"),
        (Annotated[float, msgspec.Meta(lt=1)], b"0.5", b"1e308"),
        (int, b"18446744073709551615", b"18446744073709551616"),
        (int, b"-9223372036854775808", b"-9223372036854775809"),
        (float, b"1e308", b"1e309"),
    ],
)
def test_a_value_beyond_its_range_is_invalid_and_never_reaches_the_handler(annotation, good, bad):
    assert outcome(annotation, good) == ("done", True)
    assert outcome(annotation, bad) == ("invalid", False)


def test_a_json_schema_sets_ranges_too():
    schema = {"properties": {"n": {"minimum": 1, "maximum": 10}}}
    assert outcome(dict, b'{"n": 10}', schema) == ("done", True)
    assert outcome(dict, b'{"n": 11}', schema) == ("invalid", False)


class Blind(msgspec.Struct):
    n: SmallForPydantic


class BlindModel(pydantic.BaseModel):
    n: Small


class Described(pydantic.BaseModel):
    n: Annotated[int, msgspec.Meta(description="how many")]


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Blind, r"Blind: field 'n' has the constraint FieldInfo.*msgspec\.Meta"),
        (list[Blind], r"Blind: field 'n'"),
        (BlindModel, r"BlindModel is decoded by pydantic, which does not check msgspec\.Meta\(ge=1, le=10\)"),
    ],
)
def test_a_constraint_that_nobody_would_check_is_refused_when_the_consumer_is_registered(annotation, words):
    with pytest.raises(ConfigError, match=words):
        outcome(annotation, b"{}")


def test_a_meta_that_only_describes_is_no_constraint():
    assert outcome(Described, b'{"n": 11}') == ("done", True)


def test_constraints_that_need_pydantic_ask_for_it_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(MissingExtra, match=r"pip install 'unpoison\[pydantic\]'"):
        outcome(Annotated[int, annotated_types.Le(10)], b"1")
