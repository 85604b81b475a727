"""What ended an attempt badly, as plain data?"""

import traceback as tracebacks

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.classifying import UNKNOWN, raised
from unpoison.model import failure
from unpoison.model.failure import (
    NAME_LIMIT,
    TEXT_LIMIT,
    TRACEBACK_LIMIT,
    Failure,
    cap,
    describe,
    text_of,
    trace_of,
    traceback_of,
    type_name,
)

texts = st.text(st.characters())  # with lone surrogates


def ship(order):
    return order["total"]


def explode(*_arguments):
    raise KeyboardInterrupt


class Mute(Exception):
    """Its texts raise."""

    __str__ = explode
    __repr__ = explode


class Blind(SyntaxError):
    """Its attributes raise, also those that a traceback wants to show."""

    filename = property(explode)
    __cause__ = property(explode)


class Untraceable(Exception):
    __traceback__ = property(explode)


def test_an_exception_is_described_by_type_text_and_traceback():
    name, text, traceback = describe(raised(ship, {}))
    assert (name, text) == ("KeyError", "'total'")
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert 'return order["total"]' in traceback
    assert traceback.endswith("KeyError: 'total'\n")


def test_a_type_is_named_with_its_module_unless_it_is_a_builtin():
    class Inner(Exception):
        pass

    assert type_name(ValueError) == "ValueError"
    assert type_name(Mute) == f"{__name__}.Mute"
    assert type_name(Inner).endswith("test_a_type_is_named_with_its_module_unless_it_is_a_builtin.<locals>.Inner")


def throw(error):
    raise error


@pytest.mark.parametrize("kind", [Mute, Blind, Untraceable])
def test_describing_an_exception_never_raises(kind):
    name, text, traceback = describe(raised(throw, kind()))
    assert name == f"{__name__}.{kind.__name__}"
    assert isinstance(text, str)
    assert isinstance(traceback, str)


def test_a_text_that_cannot_be_read_says_why():
    assert text_of(Mute()) == "<Mute: its text could not be read, KeyboardInterrupt was raised>"


def test_where_it_was_raised_is_kept_even_if_the_exception_cannot_be_shown():
    assert "raise error" in traceback_of(raised(throw, Blind()))
    assert trace_of(Untraceable()) is None


def test_the_causes_are_part_of_the_traceback():
    error = raised(throw, ValueError("outer"))
    error.__cause__ = KeyError("inner")
    assert traceback_of(error).index("inner") < traceback_of(error).index("outer")


def test_huge_texts_are_capped_at_both_ends():
    error = raised(throw, ValueError("first" + "x" * 5_000_000 + "last"))
    _, text, traceback = describe(error)
    assert text.startswith("first")
    assert text.endswith("last")
    assert len(text) < TEXT_LIMIT + 100
    assert len(traceback) < TRACEBACK_LIMIT + 100
    assert traceback.startswith("Traceback")
    assert "characters left out" in text
    assert len(type_name(type("x" * 100_000, (Exception,), {}))) < NAME_LIMIT + 100


@given(texts, st.integers(1, 50))
def test_what_is_capped_fits_its_limit_and_can_be_stored(text, limit):
    capped = cap(text, limit)
    capped.encode()
    assert len(capped) <= limit + len(f"\n… {len(text)} characters left out …\n")
    assert len(text) > limit or len(capped) == len(text)


@given(texts)
def test_a_failure_with_any_text_survives_the_way_to_the_consumer(text):
    odd = type("Odd", (Exception,), {"__module__": text})
    name, said, traceback = describe(raised(throw, odd(text)))
    failure = Failure(classification=UNKNOWN, rule="r", type_name=name, text=said, traceback=traceback)
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure).text == said


def fail_in_many_ways(kind):
    try:
        if kind == "group":
            inner = ExceptionGroup("inner", [raised(throw, KeyError("deep"))])
            raise ExceptionGroup("both", [raised(ship, {}), raised(throw, inner)])
        ship({})
    except KeyError as error:
        if kind == "cause":
            raise ValueError("no total") from error
        if kind == "context":
            throw(ValueError("while handling"))
        raise
    finally:
        kind = "done"


@pytest.mark.parametrize("kind", ["plain", "cause", "context", "group"])
def test_a_short_traceback_is_what_python_prints_the_first_time_and_ever_after(kind):
    for _ in range(3):
        error = raised(fail_in_many_ways, kind)
        assert traceback_of(error) == "".join(tracebacks.format_exception(error))


def test_failures_in_the_same_place_keep_their_own_words():
    first, second = (traceback_of(raised(throw, ValueError(words))) for words in ("first", "second"))
    assert first.endswith("ValueError: first\n")
    assert second.endswith("ValueError: second\n")


def test_a_function_that_took_the_place_of_another_has_its_own_traceback():
    for number in range(50):  # each is gone before the next is made, so that several have the same address in memory
        made: dict[str, object] = {}
        exec(compile("\n" * number + "def fail(_): 1 / 0", f"made_{number}.py", "exec"), made)
        assert f'File "made_{number}.py", line {number + 1}, in fail' in traceback_of(raised(made.pop("fail"), None))


def test_the_tracebacks_that_are_kept_are_few_and_short(monkeypatch):
    known: dict[object, object] = {}
    monkeypatch.setattr(failure, "_known_frames", known)
    for depth in range(failure.DEEPEST_KNOWN + 20):
        traceback_of(raised(descend, depth))
        assert len(known) <= failure.DEEPEST_KNOWN
    known.clear()
    monkeypatch.setattr(failure, "MOST_KNOWN", 10)
    for depth in range(50):
        traceback_of(raised(descend, depth))
        assert 0 < len(known) <= 10


def descend(depth):
    return descend(depth - 1) if depth else ship({})


def test_a_long_traceback_shows_where_it_began_and_where_it_went_wrong():
    text = traceback_of(raised(descend, 200))
    assert text.index("in raised") < text.index("  … 173 frames left out …\n") < text.index("in ship")
    assert "left out" not in traceback_of(raised(descend, 20))
