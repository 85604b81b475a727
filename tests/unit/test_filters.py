"""What a filter means, case by case, and what it says to somebody who mistyped it."""

import json

import pytest

from tests.unit.filtering import NOW, letter
from unpoison.errors import FilterError
from unpoison.filters import matching
from unpoison.filters.fields import FIELDS, MEANT
from unpoison.filters.filter import Filter
from unpoison.filters.matching import Subject, predicate
from unpoison.filters.terms import And, Condition, Not, Or, Pattern, Word

ORDER = {
    "id": 7,
    "total": 120.5,
    "paid": True,
    "note": None,
    "Name": "Ann",
    "items": [{"sku": "A-1", "n": 1}, {"sku": "b-2", "n": 9}],
}
LETTER = letter(
    id="orders-12",
    message_id="order-4711",
    key="customer-7",
    headers={"Tenant": "acme", "x.trace": "7", "empty": ""},
    body=json.dumps(ORDER).encode(),
    classification="transient",
    rule="http: 503",
    reason="transient: 5 of 5 attempts failed",
    error_type="requests.exceptions.ReadTimeout",
    error="read timed out after 30 s: ÄRGER",
    traceback='File "shipping.py", line 3',
    fingerprint="3f9a77",
    consumer="web-1:401",
    code_version="1.4.2",
    attempts=5,
    replays=1,
    first_failed_at=NOW - 2 * 86_400,  # NOW is 2027-01-15 08:00 UTC
    last_failed_at=NOW - 5_400,
)

TRUE = """
timeout
READ*out
"timed out after"
shipping.py
order-4711
customer-7
sku
error:timeout
error:"ReadTimeout: read timed"
error:ReadTimeout*
error:requests.*
error:*30*
not error:ReadTimeout*ReadTimeout
not error:r*Timeout*x
not source:ord*ers*ers
not source:orders*s
not source:o*d*x*
error=ReadTimeout
error="read timed out after 30 s: ÄRGER"
error!=Timeout
error:ÄRGER
not error:ärger
not error:Timeout*
traceback:*line*3
not traceback:line*
reason:"5 of 5"
rule:503
class:transient
class:Transient
class:trans*
class!=crash
state:dead
source:orders
source:ORDERS
not source=ORDERS
not source:order
source:ord*
group:3F
group=3f9a77
not group:9a
not group=3f
key:customer-7
not key:customer
key:*-7
key:*
id:orders-12
id:order-4711
not id:order
version:1.4.2
version:1.4.*
not version:1.4
consumer:web-1*
header.tenant:ACME
header.Tenant=acme
not header.tenant=ACME
header.x.trace:7
header."x.trace":7
header.empty:""
header.empty:*
not header.nope:*
not header.nope:""
header.nope!=x
body:"A-1"
body.id:7
body.id=7
body.id:7.0
body.id>6
body.id<=7
body.id<7.5
not body.id:"7"
not body.id>x
body.total>100
body.total<=120.5
body.paid:true
not body.paid:1
not body.paid>0
body.note:null
body.note:*
not body.nope:null
not body.nope:*
body.nope!=1
body.Name:ann
body.Name=Ann
not body.Name=ann
not body.name:ann
body.Name:A*
body.Name>=Am
body.Name<B
not body.Name>a
body.items[].sku:a-1
body.items[1].sku:b-2
not body.items[0].sku:b-2
not body.items[2].sku:*
body.items[].n>5
not body.items[].n>9
not body.items.sku:*
not body.items:A-1
body.items[]:*
age>1h
age>=90m
age<=1h30m
age<2h
not age>90m
age<1w
failed:2027-01-15
failed:2027-01-15T06:30
failed=2027-01-15T06:30:00
failed="2027-01-15 07:30+01:00"
not failed>2027-01-15
failed>=2027-01-15
failed<=2027-01-15
not failed<2027-01-15
failed>2027-01-14
failed!=2027-01-14
failed:2027-01-15T05:30-01:00
not failed:2027-01-15T06:29
not failed:2027-01-15T06:29:59
not failed:2027-01-15T06:29:59.5
first_failed:2027-01-13
first_failed<2027-01-15
attempts:5
attempts>=5
attempts!=4
replays>0
not replays>1
timeout age>1h
timeout and age>1h
timeout or crash
(timeout crash) or age>1h
timeout (crash or age>1h)
crash or timeout age>1h
not timeout or age>1h
not (timeout crash)
-crash
-class:crash timeout
NOT crash AND timeout
not not timeout
"""


@pytest.mark.parametrize("text", TRUE.strip().splitlines())
def test_this_filter_matches_and_its_opposite_does_not(text):
    assert Filter.parse(text).matches(LETTER, NOW)
    assert not Filter.parse(f"not ({text})").matches(LETTER, NOW)


def test_a_day_ends_where_the_next_one_begins():
    midnight = letter(last_failed_at=NOW + 16 * 3_600)  # the 16th at 00:00
    for text in ("failed:2027-01-16", "failed>2027-01-15", "not failed:2027-01-15", "not failed<=2027-01-15"):
        assert Filter.parse(text).matches(midnight, NOW)


@pytest.mark.parametrize("body", [b"", b"piano", b"\xff{}", b'{"a":', b"[" * 100_000, b'{"a": 1e999}', b"\xef\xbb\xbf{}"])
def test_a_body_that_is_no_json_has_no_members_and_raises_nothing(body):
    for text in ("body.a:1", "body.a:*", "body[0]:1", "body[]:*", "body.a>1"):
        assert not Filter.parse(text).matches(letter(body=body), NOW)
        assert Filter.parse(f"not {text}").matches(letter(body=body), NOW)


@pytest.mark.parametrize(("body", "is_text"), [(b"a piano", True), (b"a piano \xff", False), (b"a piano \0", False)])
def test_words_are_found_in_bodies_that_are_text(body, is_text):
    assert Filter.parse("piano").matches(letter(body=body), NOW) is is_text
    assert Filter.parse("body:piano").matches(letter(body=body), NOW) is is_text
    assert Filter.parse("body:*").matches(letter(body=body), NOW) is is_text


@pytest.mark.parametrize("field", ["key", "version", "traceback", "group", "rule", "reason", "consumer"])
def test_a_star_alone_asks_whether_there_is_anything(field):
    empty = letter(key=None, code_version=None, traceback="", fingerprint="", rule="", reason="", consumer="")
    assert Filter.parse(f"{field}:*").matches(LETTER, NOW)
    assert not Filter.parse(f"{field}:*").matches(empty, NOW)


@pytest.mark.parametrize(
    ("member", "text", "matches"),
    [
        ("9007199254740993", "body.n:9007199254740992", False),
        ("9007199254740993", "body.n:9007199254740993", True),
        ("9007199254740993", "body.n>9007199254740992", True),
        ("9007199254740993", "body.n:9007199254740992.0", True),
        ("9223372036854775809", "body.n:9223372036854775808", True),  # beyond 64 bits as floats
        ("9223372036854775808", "body.n:9223372036854775807", True),
        ("9223372036854775806", "body.n:9223372036854775807", False),
        ("1e3", "body.n:1000", True),
        ("1", "body.n<1e999", False),
        ("0.1", "body.n:0.10", True),
        ("100000000000000000000", "body.n>1e19", True),
        ('"00701"', "body.n:00701", True),
        ("701", "body.n:00701", False),
        ('"9"', "body.n>10", False),
        ('"9"', 'body.n>"10"', True),
        ('"7"', "body.n:7", True),
        ('"true"', "body.n:true", True),
        ("false", "body.n:0", False),
        ("1", "body.n:true", False),
    ],
)
def test_numbers_compare_as_numbers_and_texts_as_texts(member, text, matches):
    assert Filter.parse(text).matches(letter(body=f'{{"n": {member}}}'.encode()), NOW) is matches


def test_a_body_is_decoded_once_and_only_if_the_rest_has_not_decided(monkeypatch):
    decoded = []
    decode = matching._decode
    monkeypatch.setattr(matching, "_decode", lambda body: decoded.append(body) or decode(body))
    assert not Filter.parse("body.id:7 class:crash").matches(LETTER, NOW)
    assert Filter.parse("body.id:8 or class:transient").matches(LETTER, NOW)
    assert decoded == []
    assert Filter.parse("body.id:7 body.total>1 body.paid:true").matches(LETTER, NOW)
    assert len(decoded) == 1


def test_a_pattern_of_many_stars_takes_no_longer_than_a_few_looks_at_the_text():
    """A regular expression would try every split: 30 stars over a few thousand letters end in no lifetime."""
    text = "*a" * 30 + "*b*c"
    assert not Filter.parse(f"error:{text}").matches(letter(error="a" * 4_000), NOW)
    assert not Filter.parse(text).matches(letter(traceback="a" * 16_000), NOW)


def test_a_letter_is_its_own_moment_unless_another_is_given(monkeypatch):
    monkeypatch.setattr("unpoison.filters.filter.time.time", lambda: NOW - 5_400 + 10)
    assert Filter.parse("age<=10s").matches(LETTER)
    assert not Filter.parse("age<10s").matches(LETTER)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a AND (b)", "a b"),
        ("-a", "not a"),
        ("a or (b and c)", "a or (b c)"),
        ("class:CRASH", "class:crash"),
        ("a**b", "a*b"),
        ("body.items[*].sku:x", "body.items[].sku:x"),
        (r"a\*b", '"a*b"'),
        (r"a\ b", '"a b"'),
        ("age>90m", "age>1h30m"),
        ("age>1.5d", "age>36h"),
        ('error:"timeout"', "error:timeout"),
        ('header."a":1', "header.a:1"),
        ("body.'x':1", "body.'x':1"),
    ],
)
def test_filters_that_say_the_same_are_equal(text, same):
    assert Filter.parse(text) == Filter.parse(same)
    assert str(Filter.parse(text)) == str(Filter.parse(same))
    assert len({Filter.parse(text), Filter.parse(same)}) == 1
    assert repr(Filter.parse(text)) == f"Filter.parse({str(Filter.parse(same))!r})"


@pytest.mark.parametrize(
    "text", ['"and"', '"Not"', 'body.n:"7"', "body.n:7", 'body.n:"true"', 'key:"or"', r'"a\\b\"c"', r"error:a\ \-\(*", "age>90m"]
)
def test_quotes_and_backslashes_are_printed_where_they_are_needed(text):
    assert str(Filter.parse(text)) == text
    assert Filter.parse(str(Filter.parse(text))) == Filter.parse(text)


def test_a_filter_that_was_read_is_not_read_again():
    found = Filter.parse("timeout")
    assert Filter.parse(found) is found


def test_not_binds_before_and_and_that_before_or():
    a, b, c = (Word(Pattern((text,))) for text in "abc")
    assert Filter.parse("not a b or c").term == Or((And((Not(a), b)), c))
    assert Filter.parse("a or b c").term == Or((a, And((b, c))))


def test_what_was_read_is_plain_data_for_whoever_compiles_it():
    found = Filter.parse("body.items[].sku:x* total")
    assert found.term == And((Condition("body", ":", Pattern(("x", "")), ("items", None, "sku")), Word(Pattern(("total",)))))
    assert predicate(found.term)(Subject(letter(body=b'{"items":[{"sku":"x1"}],"total":1}'), NOW))


def test_a_dlq_that_holds_no_letter_that_is_meant_need_not_be_read():
    text = Filter.parse("source:orders timeout or source:e* not state:dead")
    assert text.can_match(source="orders")
    assert text.can_match(source="emails", state="replayed")
    assert not text.can_match(source="emails", state="dead")
    assert not text.can_match(source="refunds")


ERRORS = [
    ("", "The filter is empty. To take every letter, leave the filter out", ""),
    ("  ", "The filter is empty", ""),
    ("sorce:orders age>1h", "There is no field 'sorce'. Did you mean 'source'?", "sorce"),
    ("fingerprint:3f", "Did you mean 'group'?", "fingerprint"),
    ("ERROR:x", "Did you mean 'error'?", "ERROR"),
    ("first-failed:x", "Did you mean 'first_failed'?", "first-failed"),
    ("http://x", 'The fields are error, traceback, .* put it into quotes: "http://x"', "http"),
    ("1e5:x", "'1e5' is no field", "1e5"),
    ("KeyError: x", 'To search for the text put it into quotes: "KeyError:"', "KeyError"),
    ("error: timeout", "The value is missing: it stands right behind the operator, as in error:timeout", "error:"),
    ("age > 1h", "'>' needs a field right before it, without a space: age>1h", ">"),
    ("class==crash", "'==' is no operator. The operators are : = != > >= < <=", "=="),
    ("class:transent", "There is no class 'transent'. Did you mean 'transient'?", "transent"),
    ("class:xyz", "It is one of transient, throttled, permanent", "xyz"),
    ("state:gone", "There is no state 'gone'. It is one of dead, replayed, discarded", "gone"),
    ("age>1", "'1' has no unit. Write s, m, h, d or w", "1"),
    ("age>1y", "'y' in '1y' is no unit", "1y"),
    ("age>soon", "age takes a length of time, and 'soon' is none: age>1h", "soon"),
    ("age:1h", "age is compared by > >= < <=, not by ':'", "age:1h"),
    ("error>x", "error is compared by : = !=, not by '>'", "error>x"),
    ("attempts>many", "attempts takes a whole number from 0, and 'many' is none", "many"),
    ("failed>1h", "failed takes a day or a time in UTC.*For a length of time: age>1h", "1h"),
    ("failed:2026-02-30", "'2026-02-30' is not in the calendar: day is out of range for month", "2026-02-30"),
    ("(a or b", "This parenthesis is not closed", "("),
    ("a) b", "This parenthesis closes none", ")"),
    ("()", "Something is missing before this parenthesis", ")"),
    ("a or", "Here the filter ends too early: a word, or a condition", ""),
    ("a or or b", "Something is missing before 'or'.*put it into quotes: \"or\"", "or"),
    ("and a", "Something is missing before 'and'", "and"),
    ('error:"a', "The quotes are not closed", '"a'),
    ("a\\", "A backslash takes the next character as it is, and there is none", "\\"),
    ("f(x)", "This opening parenthesis stands right behind a word. Put a space before it", "("),
    ("error:f(x)", "This opening parenthesis stands right behind a word", "("),
    ('error:"a"b', "This character stands right behind a word", "b"),
    ('"a"b', "This character stands right behind a word", "b"),
    ("- a", "stands right before what it excludes", "-"),
    ("error=*x", "'=' compares with the text as it is. With stars write error:", "*x"),
    ("error:*x (", "Here the filter ends too early", ""),
    ("*", "This is in every letter", "*"),
    ('""', "This is in every letter", '""'),
    ('key:""', r"An empty value. For letters without one: not key:\*", '""'),
    ("header:x", "Which header\\? Its name stands behind a dot: header.tenant:acme", "header:x"),
    ("error.x:1", "error has nothing inside", "error.x:1"),
    ("body.x>true", "true is neither greater nor less than anything", "true"),
    ("body[a].x:1", "'\\[a\\]' is no place in a list. Write \\[0\\] for the first element, \\[\\] for any", "body[a].x:1"),
    ("(" * 60, "The filter is nested more than 50 levels deep", "("),
    ("x" * 4_001, "The filter has 4,001 characters, and may have 4,000", ""),
]


@pytest.mark.parametrize(("text", "said", "marked"), ERRORS, ids=[text[:20] for text, _, _ in ERRORS])
def test_an_error_says_what_is_meant_and_points_at_the_place(text, said, marked):
    with pytest.raises(FilterError, match=said) as raised:
        Filter.parse(text)
    error = raised.value
    assert text[error.start : error.end] == marked
    if text.strip():
        _, shown, caret = str(error).split("\n")
        assert caret.count("^") == max(1, len(marked))
        assert shown[caret.index("^") :].startswith(marked)


def test_the_caret_is_below_the_place_whatever_stands_before_it():
    wide = '"価格" "\x1b[31m" x:1'
    with pytest.raises(FilterError) as raised:
        Filter.parse(wide)
    _, shown, caret = str(raised.value).split("\n")
    assert shown == r'  "価格" "\x1b[31m" x:1'
    assert caret.index("^") == shown.index("x:1") + 2  # each of the two takes two columns


def test_the_examples_of_the_fields_are_filters_and_what_people_may_try_is_none():
    for name, field in FIELDS.items():
        assert Filter.parse(field.example).term.field == name
    for tried, meant in MEANT.items():
        with pytest.raises(FilterError, match=f"Did you mean {meant!r}"):
            Filter.parse(f"{tried}:x")
