"""Random filters and letters, and a second, plain evaluation of a filter.

`is_meant` is written as the documentation speaks, one field after the other, with regular expressions and no order of its own. It
shares nothing with the package but the parsed form.
"""

import json
import re
import string
from math import isnan

import msgspec
from hypothesis import strategies as st

from unpoison.filters.fields import EQUALITY, FIELDS, Kind
from unpoison.filters.terms import And, Condition, Duration, Not, Or, Pattern, Span, Word
from unpoison.filters.values import span
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Message

NOW = 1_800_000_000.0
WORDS = (
    "timeout",
    "Time",
    "out",
    "KeyError",
    "key",
    "7",
    "7.0",
    "a b",
    "É",
    "é",
    "STRASSE",
    "a.b",
    "*",
    '"',
    "\\",
    "true",
    "orders",
    "a\0b",
    "a\ufffdb",
)
DAYS = ("2027-01-14", "2027-01-15", "2027-01-15T08:00", "2027-01-15T07:59:59.5", "2027-01-15T09:00+01:00", "2027-01-16")
PATHS = (("a",), ("a", "b"), (None,), ("a", None), ("a", None, "b"), (0,), ("a", 1), ("7",), ("a.b", None, None))


def letter(**known):
    """A letter with these facts; those of its message go by the names `message_id`, `source`, `key`, `headers` and `body`."""
    message = Message(
        known.pop("message_id", "m-1"),
        known.pop("source", "orders"),
        known.pop("body", b"{}"),
        known.pop("key", None),
        known.pop("headers", {}),
    )
    usual = {"id": "orders-1", "attempts": 1, "classification": "permanent", "rule": "", "reason": "", "error_type": "KeyError"}
    usual |= {"error": "'total'", "first_failed_at": NOW - 60.0, "last_failed_at": NOW - 60.0}
    return DeadLetter(message=message, **usual | known)


# Random letters


def _joined(most):
    return st.lists(st.sampled_from(WORDS), max_size=most).map("".join)


_scalars = st.one_of(
    st.none(), st.booleans(), st.sampled_from([0, 7, 7.0, 7.5, -7, 2**53, 2**53 + 1, 2**63, 2**63 + 1, 10**30, 1e300]), _joined(2)
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "7", "a.b"]), inner),
    max_leaves=8,
)
_bodies = st.one_of(
    _values.map(lambda value: json.dumps(value, ensure_ascii=False).encode()),
    _joined(3).map(str.encode),
    st.binary(max_size=8),
    st.sampled_from([b'{"a":1,"a":7}', b"[" * 5_000, b'{"a":1e999}', b'{"a": "\\ud800"}', b"\xef\xbb\xbf{}", b'"timeout\0"']),
)
_moments = st.sampled_from([NOW, NOW - 0.5, NOW - 60, NOW - 3_600, NOW - 3_601, NOW - 90_000, 0.0, float("inf"), float("nan")])
letters = st.builds(
    letter,
    id=st.sampled_from(["orders-7", "orders-12"]),
    message_id=_joined(1),
    source=st.sampled_from(["orders", "Orders", "emails"]),
    key=st.none() | _joined(1),
    headers=st.dictionaries(st.sampled_from(["a", "A", "a.b", "É"]), _joined(1)),
    body=_bodies,
    classification=st.sampled_from(["crash", "permanent", "strange"]),
    state=st.sampled_from(["dead", "replayed", "discarded"]),
    rule=_joined(1),
    reason=_joined(2),
    error_type=st.sampled_from(["KeyError", "requests.Timeout", ""]),
    error=_joined(2),
    traceback=_joined(2),
    fingerprint=st.sampled_from(["7timeout", "TIME7", ""]),
    consumer=_joined(1),
    code_version=st.none() | _joined(1),
    attempts=st.integers(0, 4),
    replays=st.integers(0, 2),
    first_failed_at=_moments,
    last_failed_at=_moments,
)


# Random filters, as the parsed form


_any_text = st.one_of(_joined(2), st.sampled_from(["", *WORDS]), st.text(st.characters(exclude_categories=()), max_size=5))
_some_text = _any_text.filter(bool)
_starred = (
    st.lists(_any_text, min_size=2, max_size=4)
    .filter(lambda pieces: all(pieces[1:-1]))
    .map(lambda pieces: Pattern(tuple(pieces)))
)
_words = st.one_of(_some_text.map(lambda text: Pattern((text,))), _starred.filter(lambda pattern: any(pattern.pieces))).map(Word)
_durations = st.builds(
    lambda number, unit: Duration(number * unit), st.integers(0, 70), st.sampled_from([0.25, 1.0, 60.0, 3_600.0])
)
_numbers = st.sampled_from(
    [
        "0",
        "-0",
        "7",
        "7.0",
        "7.5",
        "70e-1",
        "-7",
        "1e30",
        "9007199254740992",
        "9007199254740993",
        "9223372036854775808",
        "9223372036854775809",
    ]
)


@st.composite
def conditions(draw):
    field = draw(st.sampled_from(list(FIELDS)))
    path = draw(st.sampled_from(PATHS)) if field == "body" and draw(st.booleans()) else ()
    kind = Kind.JSON if path else FIELDS[field].kind
    if kind is Kind.HEADER:
        path = (draw(st.sampled_from(["a", "a.b", "É", "é"]) | _some_text),)
    operator = draw(st.sampled_from(kind.operators))
    return Condition(field, operator, draw(_value(field, kind, operator)), path)


def _value(field, kind, operator):
    if kind is Kind.NUMBER:
        return st.integers(0, 4)
    if kind is Kind.AGE:
        return _durations
    if kind is Kind.MOMENT:
        return st.sampled_from(DAYS).map(lambda text: span(field, text))
    if FIELDS[field].values:
        return st.sampled_from(FIELDS[field].values).map(lambda text: Pattern((text,)))
    plain = (_any_text if kind in (Kind.JSON, Kind.HEADER) else _some_text).map(lambda text: Pattern((text,)))
    if kind is Kind.JSON:
        literals = _numbers | st.sampled_from(["true", "false", "null"]) if operator in EQUALITY else _numbers
        plain = st.one_of(
            plain, _numbers.map(lambda text: Pattern((text,))), literals.map(lambda text: Pattern((text,), is_literal=True))
        )
    return plain | _starred if operator == ":" else plain


filters = st.recursive(
    _words | conditions(),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(lambda terms: And(tuple(terms))),
        st.lists(inner, min_size=2, max_size=3).map(lambda terms: Or(tuple(terms))),
    ),
    max_leaves=6,
)


# The plain evaluation


def is_like(pattern, text, *, anywhere):
    """By a regular expression."""
    wanted = ".*".join(re.escape(_lower(piece)) for piece in pattern.pieces)
    return bool((re.search if anywhere else re.fullmatch)(wanted, _lower(text), re.DOTALL))


def is_meant(term, letter, now):
    match term:
        case Not(inner):
            return not is_meant(inner, letter, now)
        case And(terms):
            return not [each for each in terms if not is_meant(each, letter, now)]
        case Or(terms):
            return bool([each for each in terms if is_meant(each, letter, now)])
        case Word(pattern):
            return any(is_like(pattern, text, anywhere=True) for text in _searched(letter))
        case Condition(operator="!="):
            return not is_meant(Condition(term.field, "=", term.value, term.path), letter, now)
    return _holds(term, letter, now)


def _holds(term, letter, now):
    field, operator, value = term.field, term.operator, term.value
    if isinstance(value, Duration):
        return _compared(now - letter.last_failed_at, operator, value.seconds)
    if isinstance(value, Span):
        return _within(letter.last_failed_at if field == "failed" else letter.first_failed_at, operator, value)
    if isinstance(value, int):
        return _compared(getattr(letter, field), operator, value)
    if field == "header":
        found = [text for name, text in letter.message.headers.items() if _lower(name) == _lower(term.path[0])]
        return any(_equal(operator, value, text) for text in found)
    if term.path:
        return any(_member_holds(operator, value, each) for each in _members(letter.body, term.path))
    return any(_text_holds(field, operator, value, text) for text in _texts(letter)[field] if text)


def _within(moment, operator, span):
    before, after = moment < span.start, moment >= span.end
    within = not (before or after or isnan(moment))
    return {"<": before, "<=": before or within, ">": after, ">=": after or within}.get(operator, within)


def _text_holds(field, operator, value, text):
    if operator == "=":
        return text == value.text
    if field == "group" and not value.has_stars:
        return _lower(text).startswith(_lower(value.text))
    return is_like(value, text, anywhere=FIELDS[field].kind is Kind.TEXT and not value.has_stars)


def _texts(letter):
    message, short = letter.message, letter.error_type.split(".")[-1]
    forms = [letter.error_type, short, letter.error, f"{letter.error_type}: {letter.error}", f"{short}: {letter.error}"]
    single = {"traceback": letter.traceback, "reason": letter.reason, "rule": letter.rule, "body": _text(letter.body)}
    single |= {"class": letter.classification, "state": letter.state, "source": message.source, "group": letter.fingerprint}
    single |= {"key": message.key, "version": letter.code_version, "consumer": letter.consumer}
    return {"error": forms, "id": [letter.id, message.id], **{name: [text] for name, text in single.items()}}


def _searched(letter):
    texts = _texts(letter)
    return [text for name in ("error", "traceback", "body", "id", "key") for text in texts[name] if text]


def _text(body):
    try:
        return "" if b"\0" in body else body.decode()
    except UnicodeDecodeError:
        return ""


def _lower(text):
    return text.translate(str.maketrans(string.ascii_uppercase, string.ascii_lowercase))


def _equal(operator, pattern, text):
    return text == pattern.text if operator == "=" else is_like(pattern, text, anywhere=False)


def _members(body, path):
    try:
        found = [msgspec.json.decode(body)]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return
    for step in path:
        deeper = []
        for value in found:
            if isinstance(value, dict) and isinstance(step, str) and step in value:
                deeper.append(value[step])
            elif isinstance(value, list) and step is None:
                deeper.extend(value)
            elif isinstance(value, list) and isinstance(step, int) and len(value) > step:
                deeper.append(value[step])
        found = deeper
    yield from found


def _member_holds(operator, pattern, value):
    if pattern.pieces == ("", ""):
        return True
    wanted = json.loads(pattern.text) if pattern.is_literal else pattern.text
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if operator in ("<", "<=", ">", ">="):
        same_kind = is_number if pattern.is_literal else isinstance(value, str)
        return same_kind and (_compared_numbers(value, operator, wanted) if is_number else _compared(value, operator, wanted))
    if isinstance(value, str):
        return _equal(operator, pattern, value)
    if not pattern.is_literal:
        return False
    if is_number:
        return isinstance(wanted, int | float) and not isinstance(wanted, bool) and _compared_numbers(value, "=", wanted)
    return type(value) is type(wanted) and value == wanted


def _compared_numbers(left, operator, right):
    exact = all(isinstance(each, int) and -(2**63) <= each < 2**63 for each in (left, right))
    return _compared(left, operator, right) if exact else _compared(float(left), operator, float(right))


def _compared(left, operator, right):
    if isnan(left):  # a letter of another program may say anything
        return False
    sign = (left > right) - (left < right)
    return {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}.get(operator, sign == 0)
