import collections
import dataclasses
import functools
import inspect
import json
import pickle
import socket
import sys
import urllib.request
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, TypedDict
from unittest.mock import Mock

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass as pydantic_dataclass

from unpoison.body.guard import decoder
from unpoison.body.json_text import Unfit, nesting, wide_integer
from unpoison.body.signature import Unresolved, payload_annotation
from unpoison.errors import ConfigError, MissingExtra
from unpoison.model.message import Delivery

EMPTY = inspect.Parameter.empty
LOWEST, HIGHEST = -9223372036854775808, 18446744073709551615


class Order(msgspec.Struct):
    id: int
    total: float = 0.0


@dataclasses.dataclass
class Parcel:
    id: int
    weight: float = 0.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise LookupError("no such scales")


class Row(TypedDict):
    id: int
    note: str


class Model(pydantic.BaseModel):
    id: int
    total: float = 0.0
    amount: Decimal = Decimal(0)


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


@pydantic_dataclass
class Checked:
    id: Annotated[int, pydantic.Field(gt=10)]


class Plain:
    pass


class Holder(msgspec.Struct):
    inner: list[Plain]


class Tree(msgspec.Struct):
    children: "list[Tree]" = []


JSON_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string", "maxLength": 5}},
    "required": ["id"],
}


def decode(body: bytes, annotation: Any = EMPTY, schema: Any = None, max_body: int | None = None, max_depth: int = 64) -> Any:
    return decoder(annotation, schema, max_body=max_body, max_depth=max_depth)(body)


def refusal(body: bytes, annotation: Any = EMPTY, schema: Any = None, **limits: Any) -> Unfit:
    with pytest.raises(Unfit) as caught:
        decode(body, annotation, schema, **limits)
    return caught.value


def refused_at_start(annotation: Any = EMPTY, schema: Any = None) -> str:
    with pytest.raises(ConfigError) as caught:
        decoder(annotation, schema, max_body=None, max_depth=64)
    return str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "body", "expected"),
    [
        (EMPTY, b'{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
        (None, b"[1]", [1]),
        (Any, b"1", 1),
        (object, b'"x"', "x"),
        (dict, b'{"a": 1}', {"a": 1}),
        (list[int], b"[1, 2]", [1, 2]),
        (int, b"7", 7),
        (int | None, b"null", None),
        (NewType("Number", int), b"7", 7),
        (Order, b'{"id": 1, "total": 2.5, "unknown": [1]}', Order(1, 2.5)),
        (Order | None, b'{"id": 1}', Order(1)),
        (Tree, b'{"children": [{}]}', Tree([Tree()])),
        (Parcel, b'{"id": 1}', Parcel(1)),
        (Row, b'{"id": 1, "note": "n"}', {"id": 1, "note": "n"}),
        (Model, b'{"id": 1}', Model(id=1)),
        (list[Model], b'[{"id": 1}]', [Model(id=1)]),
        (Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], b'{"kind": "dog"}', Dog(kind="dog")),
        (Checked, b'{"id": 11}', Checked(id=11)),
        (str, "grün \ufeff".encode(), "grün \ufeff"),
        (str, b'{"a": 1', '{"a": 1'),
        (bytes, b"\xff\x00" + b"[" * 1000, b"\xff\x00" + b"[" * 1000),
        (bytes, b"", b""),
    ],
)
def test_a_body_that_fits_becomes_what_the_annotation_says(annotation, body, expected):
    value = decode(body, annotation)
    assert value == expected
    assert type(value) is type(expected)


def test_a_schema_goes_before_the_annotation():
    assert decode(b'{"id": 1}', dict, Order) == Order(1)
    assert decode(b'{"id": 1}', Order, bytes) == b'{"id": 1}'
    assert decode(b'{"id": 1}', Order, JSON_SCHEMA) == {"id": 1}
    assert decode(b"[1]", str, list[int]) == [1]


@pytest.mark.parametrize(
    ("body", "annotation", "rule", "said"),
    [
        (b"", EMPTY, "not-json", "blank (0 bytes)"),
        (b" \n", Order, "not-json", "blank (2 bytes)"),
        (b"hello", EMPTY, "not-json", "b'hello'"),
        (b'{"a": 1}x', EMPTY, "not-json", "trailing"),
        (b'{"a": 1', EMPTY, "not-json", "truncated"),
        (b"NaN", EMPTY, "not-json", "NaN"),
        (b'{"total": NaN, "id": 1}', Order, "not-json", "byte 10"),
        (b'{"total": NaN, "id": 1}', Model, "not-json", "byte 10"),
        (b'{"total": -Infinity, "id": 1}', Model, "not-json", "Infinity"),
        (b'{"id": 1, "x": Infinity}', Order, "not-json", "Infinity"),
        (b'"\\ud800"', EMPTY, "not-json", "ud800"),
        (b'{"a": 1e400}', EMPTY, "float-range", "number 1e400 at byte 6"),
        (b'{"id": 1, "total": -1e999}', Order, "float-range", "number -1e999 at byte 19"),
        (b'{"id": 1, "total": 1e999}', Model, "float-range", "number 1e999 at byte 19"),
        (b"1" * 400 + b".5", EMPTY, "float-range", "at byte 0"),
        (b'{"id": "x"}', Order, "schema", "$.id"),
        (b"{}", Order, "schema", "id"),
        (b"[]", Row, "schema", "Expected `object`"),
        (b'{"id": 1}', Row, "schema", "note"),
        (b'"x"', int, "schema", "Expected `int`"),
        (b'{"id": 1, "weight": -1}', Parcel, "schema", "LookupError: no such scales"),
        (b'{"id": "x", "total": "y"}', Model, "schema", "at $.id: Input should be a valid integer"),
        (b'[{"id": 1}, {"id": null}]', list[Model], "schema", "$[1].id"),
        (b'{"id": 3}', Checked, "schema", "greater than 10, got 3"),
    ],
)
def test_a_body_that_does_not_fit_is_unfit_by_a_named_rule(body, annotation, rule, said):
    unfit = refusal(body, annotation)
    assert unfit.rule == rule
    assert said in unfit.text


@pytest.mark.parametrize("annotation", [EMPTY, Order, Model, Row, Parcel])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"id": 1, "note": "Grün"}'.encode("latin-1"), "byte 0xfc at offset 21 is not UTF-8 (in Latin-1 it is 'ü')"),
        ('{"id": 1, "other": "Grün"}'.encode("latin-1"), "byte 0xfc at offset 22"),
        ('{"id": 1, "note": "x"}'.encode("utf-16"), "byte order mark of UTF-16"),
        ('{"id": 1, "note": "x"}'.encode("utf-32"), "byte order mark of UTF-32"),
        ('{"id": 1, "note": "x"}'.encode("utf-16-le"), "JSON in UTF-16-LE"),
        ('{"id": 1, "note": "x"}'.encode("utf-16-be"), "JSON in UTF-16-BE"),
        ('{"id": 1, "note": "x"}'.encode("utf-32-be"), "JSON in UTF-32-BE"),
        ('{"id": 1, "note": "x"}'.encode("utf-8-sig"), "UTF-8 byte order mark"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\xff" + b"[" * 100, "byte 0xff at offset 0"),
    ],
)
def test_a_wrong_encoding_is_named(body, said, annotation):
    unfit = refusal(body, annotation)
    assert unfit.rule == "encoding"
    assert said in unfit.text


def test_text_that_is_not_utf8_is_unfit():
    unfit = refusal(b"ab\xe9", str)
    assert (unfit.rule, "offset 2" in unfit.text) == ("encoding", True)


@pytest.mark.parametrize("annotation", [EMPTY, bytes, str, Order, Model])
def test_a_body_over_the_limit_is_unfit_and_one_at_the_limit_is_not(annotation):
    body = b'{"id": 1}'
    decode(body, annotation, max_body=9)
    unfit = refusal(body, annotation, max_body=8)
    assert (unfit.rule, unfit.text) == ("too-large", "the body has 9 bytes, the limit is 8")
    assert refusal(body, annotation, max_body=0).rule == "too-large"


@pytest.mark.parametrize("annotation", [EMPTY, dict, Order, Model])
@pytest.mark.parametrize("digits", [str(HIGHEST + 1), str(LOWEST - 1), "9" * 25, "1" * 5000, "-" + "1" * 5000])
@pytest.mark.parametrize("place", ['{"id": 1, "x": [%s]}', '{"id": %s}', '{"id": 1, "x": {"%s": "1", "y": %s}}'])
def test_an_integer_beyond_64_bits_is_unfit_wherever_it_stands(place, digits, annotation):
    body = (place.replace("%s", "k", 1) if place.count("%s") == 2 else place).replace("%s", digits).encode()
    unfit = refusal(body, annotation)
    assert unfit.rule == "integer-range"
    assert f"at byte {body.index(digits.encode())}" in unfit.text


@pytest.mark.parametrize(
    "body",
    [
        str(HIGHEST).encode(),
        str(LOWEST).encode(),
        b'["12345678901234567890123"]',
        b'["\\"12345678901234567890123"]',
        b'{"12345678901234567890123": 1}',
        b"[0.12345678901234567890123]",
        b"[12345678901234567890123.5]",
        b"[12345678901234567890123e2]",
        b'["-9999999999999999999", 1234567890123456789, 18446744073709551615]',
    ],
)
def test_long_digits_that_are_no_wide_integers_fit(body):
    assert decode(body) == json.loads(body)


def test_a_string_without_an_end_is_searched_once_and_not_from_each_of_its_quotes():
    body = b'[1e999, "' + b'\\"' * 200_000 + b"9" * 30
    assert refusal(body).rule == "float-range"


def test_a_number_beyond_a_float_fits_where_the_type_can_hold_it():
    class Price(msgspec.Struct):
        amount: Decimal

    assert decode(b'{"amount": 1e999}', Price).amount == Decimal("1e999")


@pytest.mark.parametrize("annotation", [EMPTY, Order, Model, list])
def test_nesting_is_measured_exactly_at_the_limit(annotation):
    def body(levels: int) -> bytes:
        inner = b"[" * (levels - 1) + b"]" * (levels - 1)
        return b"[" + inner + b"]" if annotation is list else b'{"id": 1, "x": ' + inner + b"}"

    decode(body(5), annotation, max_depth=5)
    unfit = refusal(body(6), annotation, max_depth=5)
    assert (unfit.rule, unfit.text) == ("too-deep", "the body is nested 6 levels deep, the limit is 5")


def test_a_depth_of_zero_lets_only_plain_values_through():
    assert decode(b"1", max_depth=0) == 1
    assert refusal(b"[]", max_depth=0).rule == "too-deep"


@pytest.mark.parametrize("annotation", [EMPTY, Order, Model])
@pytest.mark.parametrize("bomb", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"id":' * 100_000])
@pytest.mark.parametrize("max_depth", [64, 10**9])
def test_a_nesting_bomb_is_too_deep_even_without_a_useful_limit(bomb, annotation, max_depth):
    unfit = refusal(b'{"id": 1, "x": ' + bomb, annotation, max_depth=max_depth)
    assert unfit.rule == "too-deep"
    assert "100,001 levels" in unfit.text


def test_a_wide_body_and_brackets_in_strings_are_not_deep():
    wide = b"[" + b",".join([b'{"a":[[],{}]}'] * 1000) + b"]"
    assert len(decode(wide)) == 1000
    text = json.dumps({"id": 1, "x": '[{"\\' * 500 + '"]'}).encode()
    assert decode(text, Order) == Order(1)


def naive_nesting(body: bytes) -> int:
    depth = deepest = 0
    inside = escaped = False
    for byte in body:
        if escaped:
            escaped = False
        elif inside and byte == ord("\\"):
            escaped = True
        elif byte == ord('"'):
            inside = not inside
        elif not inside and byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif not inside and byte in b"]}":
            depth -= 1
    return deepest


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(LOWEST, HIGHEST) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["[", "]", "{", "}", '"[]{}"', '"\\""', '"\\\\"', '"]\\"["', "1", ",", ":", " "]), max_size=200))
@example(["["] * 300)
@example(["["] * 70 + ["]"] * 70)
@example(["]", "[", "["])
def test_nesting_equals_a_count_byte_by_byte(pieces):
    body = "".join(pieces).encode()
    assert nesting(body) == naive_nesting(body)


@settings(deadline=None)
@given(JSON_VALUES)
def test_nesting_of_any_json_equals_a_count_byte_by_byte(value):
    body = json.dumps(value).encode()
    assert nesting(body) == naive_nesting(body)


def integers_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for child in value.values() for number in integers_in(child)]
    if isinstance(value, list):
        return [number for child in value for number in integers_in(child)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


NEAR_THE_EDGE = st.sampled_from([LOWEST, HIGHEST, 10**18, -(10**18), 10**19, 10**20]).flatmap(
    lambda edge: st.integers(edge - 2, edge + 2)
)
DIGITS = st.text('0123456789.-"\\e', max_size=40)


@settings(deadline=None)
@given(st.recursive(NEAR_THE_EDGE | st.integers() | DIGITS | st.floats(0, 1), st.lists, max_leaves=8))
def test_exactly_the_integers_beyond_64_bits_are_found(value):
    body = json.dumps(value).encode()
    wide = [number for number in integers_in(value) if not LOWEST <= number <= HIGHEST]
    token = wide_integer(body)
    assert (token and int(token[0])) == (wide[0] if wide else None)


@settings(deadline=None)
@given(JSON_VALUES)
def test_every_json_value_in_range_comes_out_as_it_went_in(value):
    body = json.dumps(value).encode()
    assert decode(body) == value


ANY_BODY = st.binary(max_size=200) | st.text('[]{}",:0123456789.eE+-\\ntruefalsNI\ufeffé ', max_size=80).map(str.encode)
EVERY_KIND = {
    "json": decoder(EMPTY, None, max_body=150, max_depth=5),
    "struct": decoder(Order, None, max_body=150, max_depth=5),
    "dataclass": decoder(Parcel, None, max_body=150, max_depth=5),
    "typed dict": decoder(Row, None, max_body=150, max_depth=5),
    "pydantic": decoder(Model, None, max_body=150, max_depth=5),
    "text": decoder(str, None, max_body=150, max_depth=5),
    "json schema": decoder(EMPTY, JSON_SCHEMA, max_body=150, max_depth=5),
    "callable": decoder(EMPTY, lambda value: value["id"], max_body=150, max_depth=5),
}


@pytest.mark.parametrize("kind", EVERY_KIND)
@settings(deadline=None)
@given(body=ANY_BODY)
def test_no_body_raises_anything_but_unfit(kind, body):
    unfit = None
    try:
        EVERY_KIND[kind](body)
    except Unfit as error:
        unfit = error
    if unfit is not None:
        assert unfit.rule in {"too-large", "encoding", "not-json", "too-deep", "integer-range", "float-range", "schema"}
        assert 0 < len(unfit.text) <= 500
        unfit.text.encode()


@pytest.mark.parametrize("annotation", [dict[str, int], Order, Model, Row])
def test_the_text_is_short_and_in_one_line_whatever_the_payload(annotation):
    body = json.dumps({"id": "secret\n" * 10_000, "note": None, "k" * 5000: "x"}).encode()
    unfit = refusal(body, annotation)
    assert len(unfit.text) <= 500
    assert "\n" not in unfit.text


def test_an_unfit_survives_pickling():
    unfit = pickle.loads(pickle.dumps(Unfit("schema", "text")))
    assert (unfit.rule, unfit.text, str(unfit)) == ("schema", "text", "text")


def test_a_json_schema_is_checked_and_hands_over_the_value():
    assert decode(b'{"id": 1, "note": "abc"}', schema=JSON_SCHEMA) == {"id": 1, "note": "abc"}
    assert refusal(b'{"note": "abc"}', schema=JSON_SCHEMA).text == "at $: 'id' is a required property"
    unfit = refusal(json.dumps({"id": 1, "note": "x" * 10_000}).encode(), schema=JSON_SCHEMA)
    assert unfit.rule == "schema"
    assert unfit.text.startswith("at $.note: 'xxx")
    assert unfit.text.endswith("is too long")
    assert len(unfit.text) <= 500


def test_a_json_schema_follows_references_inside_of_itself():
    schema = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}}
    assert decode(b'{"next": {"next": {}}}', schema=schema) == {"next": {"next": {}}}
    assert refusal(b'{"next": {"next": 1}}', schema=schema).text == "at $.next.next: 1 is not of type 'object'"


def test_an_old_draft_is_read_as_such():
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": 3, "exclusiveMinimum": True}
    assert refusal(b"3", schema=schema).rule == "schema"
    assert decode(b"4", schema=schema) == 4


def test_a_json_schema_that_never_ends_makes_bodies_unfit_and_nothing_worse():
    assert "RecursionError" in refusal(b"1", schema={"$ref": "#"}).text


@pytest.fixture
def no_network(monkeypatch):
    def fail(*_args: object, **_options: object) -> None:
        pytest.fail("the network was touched")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    monkeypatch.setattr(socket, "create_connection", fail)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "nonsense"}, "at $.type"),
        ({"properties": {"a": {"pattern": "("}}}, "at $.properties.a.pattern"),
        ({"$ref": "#/$defs/missing"}, "'/$defs/missing'"),
        ({"properties": {"a": {"$ref": "https://example.com/a.json"}}}, "'https://example.com/a.json'"),
        ({"$ref": "#/parts/a", "parts": {"a": {"$ref": "http://localhost/b.json"}}}, "'http://localhost/b.json'"),
    ],
)
@pytest.mark.usefixtures("no_network")
def test_a_json_schema_that_cannot_work_is_refused_at_start_without_the_network(schema, said):
    assert said in refused_at_start(schema=schema)


@pytest.mark.usefixtures("no_network")
def test_a_reference_that_is_resolved_late_is_not_fetched_either():
    unfit = refusal(b"1", schema={"$dynamicRef": "http://localhost/a.json"})
    assert (unfit.rule, "http://localhost/a.json" in unfit.text) == ("schema", True)


def test_a_json_schema_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(MissingExtra, match=r"unpoison\[jsonschema\]"):
        decoder(EMPTY, {}, max_body=None, max_depth=64)


def test_a_callable_gets_the_json_value_and_returns_what_is_handed_over():
    assert decode(b'{"id": 7}', schema=lambda value: value["id"] * 2) == 14
    assert decode(b"[3, 1]", schema=sorted) == [1, 3]


def test_a_callable_annotated_bytes_or_str_gets_the_raw_body():
    def size(body: bytes) -> int:
        return len(body)

    def words(body: "str") -> list[str]:
        return body.split(",")

    class Reader:
        def __call__(self, body: bytes) -> bytes:
            return body[:1]

    assert decode(b"\xff\x00", schema=size) == 2
    assert decode(b"a,b", schema=words) == ["a", "b"]
    assert decode(b"\xffa", schema=Reader()) == b"\xff"
    assert refusal(b"abc", schema=size, max_body=2).rule == "too-large"


def test_whatever_a_callable_raises_is_unfit():
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def check(value: object) -> None:
        raise Silent

    assert "KeyError: 'id'" in refusal(b"{}", schema=lambda value: value["id"]).text
    unfit = refusal(b"1", schema=check)
    assert (unfit.rule, "Silent" in unfit.text) == ("schema", True)
    assert refusal(b"{", schema=check).rule == "not-json"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_ends_the_process_or_lacks_memory_is_not_taken_for_a_bad_body(kind):
    class Greedy(msgspec.Struct):
        def __post_init__(self) -> None:
            raise kind

    def stop(value: object) -> None:
        raise kind

    with pytest.raises(kind):
        decode(b"1", schema=stop)
    with pytest.raises(kind):
        decode(b"{}", Greedy)


async def coroutine(value: object) -> None: ...


def two(value: object, other: object) -> None: ...


@pytest.mark.parametrize(
    ("annotation", "schema", "said"),
    [
        (Plain, None, "Plain"),
        (list[Plain], None, "Plain"),
        (Holder, None, "Plain"),
        (collections.UserDict, None, "UserDict"),
        (Order | Tree, None, "Order"),
        (bytearray, None, "use bytes"),
        (EMPTY, Plain, "Plain"),
        (EMPTY, "Order", "'Order'"),
        (EMPTY, 5, "got 5"),
        (EMPTY, coroutine, "coroutine"),
        (EMPTY, two, "one argument"),
        (Unresolved("Missing", "NameError: nothing"), None, "'Missing'"),
    ],
)
def test_what_can_never_decode_anything_is_refused_at_start(annotation, schema, said):
    assert said in refused_at_start(annotation, schema)


def test_a_pydantic_model_that_is_not_complete_is_refused_at_start():
    class Half(pydantic.BaseModel):
        other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

    assert "is not fully defined" in refused_at_start(Half)


def test_a_decoder_can_be_used_again_after_a_refusal():
    fits = decoder(Order, None, max_body=None, max_depth=64)
    with pytest.raises(Unfit):
        fits(b'{"id": "x"}')
    assert fits(b'{"id": 1}') == Order(1)


def handles_nothing(): ...
def handles_any(payload): ...
def handles_order(order: Order) -> None: ...
def handles_text(order: "Order") -> None: ...
def handles_list(orders: list["Order"]) -> None: ...
def handles_delivery(order: Order, delivery: Delivery) -> None: ...
def handles_optional(order: Order, delivery: Delivery | None = None) -> None: ...
def handles_default(order: Order, retries: int = 3, *, flag: bool = False, **rest: object) -> None: ...
def handles_star(*args: Any) -> None: ...
def handles_none(payload: None) -> None: ...
async def handles_later(order: Order, delivery: "Delivery") -> None: ...


class Handlers:
    def method(self, order: "Order", delivery: Delivery) -> None: ...

    @staticmethod
    def static(order: "Order") -> None: ...

    def __call__(self, order: "Order") -> None: ...


def logged(function):
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return wrapper


@pytest.mark.parametrize(
    ("function", "annotation", "wants_delivery"),
    [
        (handles_any, EMPTY, False),
        (handles_order, Order, False),
        (handles_text, Order, False),
        (handles_list, list[Order], False),
        (handles_delivery, Order, True),
        (handles_optional, Order, True),
        (handles_default, Order, False),
        (handles_star, Any, False),
        (handles_none, type(None), False),
        (handles_later, Order, True),
        (Handlers().method, Order, True),
        (Handlers.static, Order, False),
        (Handlers(), Order, False),
        (logged(handles_later), Order, True),
        (functools.partial(handles_text), Order, False),
        (functools.partial(two, 1), EMPTY, False),
        (Mock(), EMPTY, False),
        (lambda payload: payload, EMPTY, False),
    ],
)
def test_the_signature_says_what_the_handler_takes(function, annotation, wants_delivery):
    if function.__class__ is functools.partial and function.func is two:
        annotation = object
    assert payload_annotation(function) == (annotation, wants_delivery)


def test_an_annotation_may_name_a_class_of_the_function_around_it():
    class Local(msgspec.Struct):
        id: int

    def handle(payload: "Local", delivery: "Delivery | None" = None) -> None: ...

    def deeper() -> Any:
        def handle(payload: "list[Local]") -> None: ...

        return payload_annotation(handle)

    assert payload_annotation(handle) == (Local, True)
    assert deeper() == (list[Local], False)


def test_an_annotation_may_name_a_class_that_the_handler_itself_uses():
    def make() -> Any:
        class Local(msgspec.Struct):
            id: int

        def handle(payload: "Local") -> bool:
            return isinstance(payload, Local)

        return handle

    assert payload_annotation(make())[0].__name__ == "Local"


def test_an_annotation_that_is_not_there_at_run_time_matters_only_without_a_schema():
    def handle(order: "Missing", delivery: "unpoison.Delivery") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    annotation, wants_delivery = payload_annotation(handle)
    assert wants_delivery
    assert "Missing" in refused_at_start(annotation)
    assert decode(b'{"id": 1}', annotation, Order) == Order(1)


def third(order: Order, delivery: Delivery, database: object) -> None: ...
def keyword(order: Order, *, database: object) -> None: ...
def only_keyword(*, order: Order) -> None: ...
def delivery_first(delivery: Delivery) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (handles_nothing, "takes no positional parameter"),
        (only_keyword, "takes no positional parameter"),
        (two, "'other: object'"),
        (third, "'database: object'"),
        (keyword, "'database: object'"),
        (delivery_first, "Delivery first"),
        (Handlers.method, "requires the parameter"),
        (min, "no signature"),
        (5, "5"),
    ],
)
def test_a_signature_that_cannot_be_called_is_refused_with_what_to_write(function, said):
    with pytest.raises(ConfigError) as caught:
        payload_annotation(function)
    assert said in str(caught.value)
