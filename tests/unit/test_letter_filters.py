"""A filter chooses the same letters in a database as in memory, on SQLite and on PostgreSQL."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.filtering import NOW, WORDS, conditions, filters, letter, letters
from tests.unit.letter_stores import all_of, arrivals, emptied, opened
from tests.unit.stores import in_new_schema
from unpoison.filters.filter import Filter
from unpoison.filters.terms import And, Condition, Not, Or, Pattern, Word
from unpoison.store.letters import bodies, reading
from unpoison.store.letters.filter_sql import MOST_LEAVES, compiled
from unpoison.store.letters.values import Order


@pytest.fixture(scope="module")
def sqlite_store(tmp_path_factory):
    store = opened(f"sqlite:///{tmp_path_factory.mktemp('letters')}/letters.db")
    yield store
    store.close()


@pytest.fixture(scope="module")
def postgresql_store(postgresql):
    store = opened(in_new_schema(postgresql.fresh()))
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    store = request.getfixturevalue(f"{request.param}_store")
    emptied(store)
    return store


groups = st.sampled_from(["9-7aaaaaaaaaaa", "9-7bbbbbbbbbbb", "10-000000000000"])
stored_letters = st.lists(
    st.tuples(letters, groups, st.booleans()).map(
        lambda drawn: letter_with(drawn[0], fingerprint=drawn[1]) if drawn[2] else drawn[0]
    ),
    max_size=6,
)


def letter_with(one, **facts):
    return type(one)(**{name: getattr(one, name) for name in one.__struct_fields__} | facts)


def put(store, some):
    emptied(store)
    store.put(arrivals(some))
    return all_of(store)


def assert_same(store, term, stored):
    where = Filter(term)
    matching = [each for each in stored if where.matches(each.letter, NOW)]
    numbers = [each.number for each in matching]
    assert list(store.select(where, now=NOW).numbers) == numbers
    assert store.count(where, now=NOW) == len(numbers)
    by_group = Counter(each.letter.fingerprint for each in matching)
    assert {group.fingerprint: group.count for group in store.groups(where, now=NOW)} == by_group
    page = store.page(where, order=Order.ARRIVAL, is_descending=False, limit=2, now=NOW)
    assert [each.number for each in page.letters] == numbers[:2]
    assert (page.next is not None) == (len(numbers) > 2)


@given(term=filters | conditions(), some=stored_letters)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_sqlite_chooses_the_letters_that_match(sqlite_store, term, some):
    assert_same(sqlite_store, term, put(sqlite_store, some))


@given(term=filters | conditions(), some=stored_letters)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_postgresql_chooses_the_letters_that_match(postgresql_store, term, some):
    assert_same(postgresql_store, term, put(postgresql_store, some))


EXACT_HEADERS = {"a": 'x"y\\z\n', "b,": '"a":"c"', '"a': "c", "É": "É"}


@pytest.mark.parametrize(
    "text",
    [
        "header.a:*",
        r'header.a:"x\"y\\z"',
        'header.A:"c"',
        "header.b:c",
        'header."b,":*a*',
        r'header."\"a":C',
        "header.É:É",
        "header.é:*",
        "not header.a:*",
        "header.none:*",
        'header.a=""',
        "header.a=c",
        "header.A=C",
    ],
)
def test_headers_with_quotes_and_commas_are_not_mistaken_for_others(store, text):
    stored = put(store, [letter(headers=EXACT_HEADERS), letter(headers={"a": "C"}), letter(), letter(headers={"x": ',"a":"c"'})])
    assert_same(store, Filter.parse(text).term, stored)


@pytest.mark.parametrize("text", ["error:100%", "error:5_0", r"error:a\\b", "error:*%", 'error="50"', "error:5*0"])
def test_signs_that_mean_something_to_sql_mean_themselves(store, text):
    stored = put(store, [letter(error=error) for error in ("100%", "100 ", "5_0", "550", "50", "a\\b", "a%b", "%")])
    assert_same(store, Filter.parse(text).term, stored)


REPLACED = [letter(**{name: text, "headers": {"a": text}}) for name in ("error", "key") for text in ("a\0b", "a\ufffdb", "a?b")]


@pytest.mark.parametrize("text", ["a\0b", "a\ufffdb", "a\ud800b", "\0", "\ufffd", "a*b"])  # noqa: PT014 - ruff takes them for one
@pytest.mark.parametrize("field", ["error", "key", "header.a", ""])
def test_what_a_column_cannot_hold_is_not_mistaken_for_what_stands_in_its_place(store, field, text):
    stored = put(store, REPLACED)
    pattern = Pattern(tuple(text.split("*")))
    if not field:
        assert_same(store, Word(pattern), stored)
        return
    name, _, path = field.partition(".")
    for operator in (":", "=", "!=") if not pattern.has_stars else ":":
        assert_same(store, Condition(name, operator, pattern, (path,) if path else ()), stored)
        assert_same(store, Not(Condition(name, operator, pattern, (path,) if path else ())), stored)


def test_of_members_of_one_name_the_last_one_counts(store):
    stored = put(store, [letter(body=b'{"a":1,"a":7}'), letter(body=b'{"\\u0061":7}'), letter(body=b'{"a":"\\u0037"}')])
    for text in ("body.a:7", "body.a:1", 'body.a:"7"', "body.a>5", "not body.a:*"):
        assert_same(store, Filter.parse(text).term, stored)
    assert store.count(Filter.parse("body.a:7")) == 3


@pytest.mark.parametrize("operator", [">", ">=", "<", "<="])
@pytest.mark.parametrize("age", ["60s", "59.9s", "0s", "1h"])
def test_ages_are_told_to_the_instant(store, operator, age):
    times = [NOW - 60, NOW - 60.5, NOW - 59.95, NOW, NOW + 5, NOW - 3_600, float("nan"), float("inf"), float("-inf")]
    stored = put(store, [letter(last_failed_at=time) for time in times])
    assert_same(store, Filter.parse(f"age{operator}{age}").term, stored)


def test_a_number_is_found_however_it_is_written(store):
    stored = put(
        store, [letter(body=b'{"a":%s}' % number) for number in (b"7", b"70e-1", b"7.0", b"1000", b"1e3", b'"1e3"', b"8")]
    )
    for text in ("body.a:7", "body.a:1e3", "body.a=1000", "body.a>=7", "body.a!=7", 'body.a:"1e3"'):
        assert_same(store, Filter.parse(text).term, stored)
    assert store.count(Filter.parse("body.a:7")) == 3


@pytest.mark.parametrize("field", ["key", "version", "consumer", "rule", "traceback", "body", "id", "error", "reason"])
def test_an_empty_text_is_not_there(store, field):
    here = {"key": "k", "code_version": "1", "consumer": "c", "rule": "r", "traceback": "t", "reason": "r"}
    stored = put(store, [letter(message_id="", body=b"", error="", error_type=""), letter(**here)])
    for text in (f"{field}:*", f"not {field}:*", f"{field}:**"):
        assert_same(store, Filter.parse(text).term, stored)


def test_a_text_that_is_compressed_is_found_too(store):
    long = ("piano " * 2_000).encode()
    stored = put(store, [letter(body=long + b"violin"), letter(body=long), letter(body=b"\xff" * 9_000)])
    for text in ("body:violin", "violin", "not body:violin", "body:*violin", "body:*"):
        assert_same(store, Filter.parse(text).term, stored)
    assert store.count(Filter.parse("violin")) == 1


def test_a_filter_of_very_many_words_is_answered_too(store):
    stored = put(store, [letter(error="word-3"), letter(error="nothing")])
    words = (*(Word(Pattern((f"no-{number}",))) for number in range(MOST_LEAVES)), Word(Pattern(("word-3",))))
    assert_same(store, Or(words), stored)
    assert_same(store, And(words), stored)
    most = Or(words[2:])
    assert_same(store, most, stored)


def test_going_through_the_letters_in_windows_finds_the_same(store, monkeypatch):
    monkeypatch.setattr(reading, "WINDOW", 3)
    told = []
    stored = put(store, [letter(body=b'{"a":%d}' % (number % 4), last_failed_at=NOW - number % 5) for number in range(20)])
    where = Filter.parse("body.a:1")
    matching = {each.number for each in stored if where.matches(each.letter)}
    for order in Order:
        for is_descending in (True, False):
            page = store.page(where, order=order, is_descending=is_descending, limit=100, progress=lambda *at: told.append(at))
            assert {each.number for each in page.letters} == matching
            keys = [(each.letter.last_failed_at if order is Order.TIME else 0, each.number) for each in page.letters]
            assert keys == sorted(keys, reverse=is_descending)
    assert set(store.select(where).numbers) == matching
    assert told
    assert told[-1] == (20, 20)
    assert all(read <= total == 20 for read, total in told)


@pytest.mark.parametrize("field", ["error", "key", "source", "header.a", "body"])
@pytest.mark.parametrize("text", [*WORDS, "\ud800", "x' or '1'='1", "?", "%s"])
def test_values_are_bound(field, text):
    name, _, path = field.partition(".")
    bounds = compiled(Condition(name, "=", Pattern((text,)), (path,) if path else ()), NOW, lambda column, condition: None)
    for condition in bounds:
        assert condition.text.count("?") == len(condition.values)
        assert text in ("a b", "?", "7", "true", "out", "key", "*", '"', "\\") or text not in condition.text


def test_json_that_is_nested_as_deep_as_can_be_may_have_members():
    assert bodies.is_json(b"[" * 100_000 + b"]" * 100_000)
    assert not bodies.is_json(b"{")
