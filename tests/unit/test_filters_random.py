"""Filters and letters of every kind, made up at random."""

import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.filtering import NOW, WORDS, filters, is_like, is_meant, letter, letters
from unpoison.errors import FilterError
from unpoison.filters.fields import FIELDS
from unpoison.filters.filter import Filter
from unpoison.filters.parsing import parse
from unpoison.filters.terms import Condition, Pattern, Word

SIGNS = ["(", ")", "-", ":", "=", "!=", ">", ">=", "<", "<=", "[", "]", "[]", ".", '"', "\\", "*", " ", " ", "\n"]
PARTS = [*FIELDS, *WORDS, *SIGNS, "and", "or", "not", "1h", "2026-08-01", "body.", "header.", "1e999"]
texts = st.lists(st.sampled_from(PARTS), max_size=14).map("".join) | st.text(st.characters(exclude_categories=()), max_size=30)


@given(filters, letters)
@settings(max_examples=500)
def test_a_filter_matches_what_the_plain_evaluation_says(term, letter):
    assert Filter(term).matches(letter, NOW) == is_meant(term, letter, NOW)


@given(st.lists(st.text("aB", max_size=3), min_size=2, max_size=4), st.text("AaB\n", max_size=9))
@settings(max_examples=400)
def test_stars_stand_for_anything(pieces, text):
    pattern = Pattern((pieces[0], *filter(None, pieces[1:-1]), pieces[-1]))
    about = letter(rule=f"{text}-", traceback=text, error="-", id="-", message_id="-")
    ends = Pattern((*pattern.pieces[:-1], pattern.pieces[-1] + "-"))
    assert Filter(Condition("rule", ":", ends)).matches(about, NOW) == is_like(ends, about.rule, anywhere=False)
    if any(pieces):
        assert Filter(Word(pattern)).matches(about, NOW) == is_like(pattern, text, anywhere=True)


@given(filters)
@settings(max_examples=300)
def test_what_a_filter_prints_reads_as_the_same_filter(term):
    assert parse(str(Filter(term))) == term


@given(texts)
@settings(max_examples=400)
@example("(" * 4_000)
@example("-" * 4_000)
@example("x" * 1_000_000)
@example("body" + "[0]" * 1_000 + ":1")
@example("body[" + "9" * 3_000 + "]:1")
@example("body.x:" + "9" * 3_900)
@example("attempts>" + "9" * 3_900)
@example("age>" + "9s" * 1_000)
@example("failed:0001-01-01T00:00+23:59")
@example("failed:9999-12-31T23:59:60")
@example("attempts:\u0667")
def test_any_text_is_a_filter_or_an_error_that_points_into_it(text):
    found = read(text)
    if isinstance(found, FilterError):
        assert 0 <= found.start <= found.end <= len(text)
        assert str(found).startswith(found.problem)
        shown, caret = found.picture.split("\n")
        assert set(caret.strip()) == {"^"}
        assert len(shown) < 800  # of 180 characters, some written as \U0001f9e8
        assert str(pickle.loads(pickle.dumps(found))) == str(found)
    else:
        assert Filter.parse(str(found)) == found == pickle.loads(pickle.dumps(found))
        found.matches(letter(), NOW)


def read(text):
    try:
        return Filter.parse(text)
    except FilterError as error:
        return error


@given(filters, letters)
def test_a_dlq_is_passed_over_only_if_none_of_its_letters_can_match(term, letter):
    found = Filter(term)
    if found.matches(letter, NOW):
        assert found.can_match(source=letter.source, state=letter.state)
        assert found.can_match(source=letter.source)
        assert found.can_match()


@pytest.mark.parametrize("text", [None, 3, b"error:x", ["error:x"]])
def test_what_is_no_text_is_no_filter(text):
    with pytest.raises(FilterError, match="A filter is a text such as"):
        Filter.parse(text)
