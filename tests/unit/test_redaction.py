"""What rules name is not in a letter any more, wherever it stood; all else stays what it was, and nothing is raised."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.filtering import letter
from tests.unit.redacting import CANARY, OTHER, key, quoting, redactor, whole
from unpoison import Redact
from unpoison.errors import ConfigError
from unpoison.model.dead_letter import WholeLetter
from unpoison.redaction.patterns import NAMED
from unpoison.redaction.rules import rules_from

BODY = json.dumps({"customer": {"email": CANARY, "age": 41}, "total": 12.5}).encode()
RULES = ("body.customer.email", "header.authorization", "key")


def redacted(body: bytes, *rules: str, **facts) -> str:
    """What becomes of a body."""
    return redactor(*rules).redacted(WholeLetter(letter=letter(body=body, **facts))).whole.letter.body.decode()


def said(found) -> bytes:
    return msgspec.msgpack.encode(found.whole)


# Rules


def test_a_rule_reads_as_it_prints():
    given_ = ["body.customer.email", "drop body.card.cvv", "searchable header.x-user", "key", r"drop pattern:[A-Z]{2,3}\d, x"]
    assert list(map(str, rules_from(given_))) == given_
    assert rules_from(["encrypt body.a"]) == (Redact("body.a"),)
    assert rules_from([Redact("body.a", "drop", searchable=True)]) == rules_from(["searchable drop body.a"])


def test_one_text_has_several_rules_and_a_comma_in_a_pattern_ends_none():
    found = rules_from([r"body.a, drop body.b,pattern:\d{4,6},key" + "\nheader.*"])
    assert [str(rule) for rule in found] == ["body.a", "drop body.b", r"pattern:\d{4,6}", "key", "header.*"]


def test_rules_may_stand_in_a_file(tmp_path):
    (tmp_path / "rules.txt").write_text("# what is personal\nbody.customer.email\n\n  drop body.card.cvv\n")
    assert list(map(str, rules_from([f"@{tmp_path}/rules.txt", "key"]))) == ["body.customer.email", "drop body.card.cvv", "key"]
    (tmp_path / "rules.txt").write_text("key\nbdy.a\n")
    with pytest.raises(ConfigError, match=r"rules.txt, line 2: .*begins with body, header, key or pattern:"):
        rules_from([f"@{tmp_path}/rules.txt"])
    with pytest.raises(ConfigError, match="nothing is"):
        rules_from([f"@{tmp_path}/none.txt"])


@pytest.mark.parametrize(
    ("text", "problem", "marked"),
    [
        ("bdy.a", "begins with body, header, key or pattern:", "^^^"),
        ("email", "'email' is the name of a pattern: pattern:email", "^^^^^"),
        ("body.a b", "no step of a path", "        ^^"),
        ("body.a[x]", "no step of a path", "        ^^^"),
        ("body.**", "What comes behind", "       ^^"),
        ("header", "Which header", "^"),
        ("key.x", "nothing inside", "^^"),
        ("pattern:mail", "no pattern 'mail'. It is one of email, card", "          ^^^^"),
        ("pattern:(", "no regular expression", "^"),
        ("pattern:a*", "finds an empty text", "^^"),
        ("drop encrypt body.a", "either encrypts or drops", "^"),
    ],
)
def test_a_rule_that_cannot_be_read_is_an_error_that_points_at_the_place(text, problem, marked):
    with pytest.raises(ConfigError) as failed:
        rules_from([text])
    assert problem in str(failed.value)
    assert marked in str(failed.value).splitlines()[-1]


def test_an_unknown_action_is_an_error():
    with pytest.raises(ConfigError, match="action is 'encrypt'"):
        Redact("body.a", action="mask")


# Paths


@pytest.mark.parametrize(
    ("rule", "body", "becomes"),
    [
        ("body.a.b", '{"a":{"b":1,"c":2}}', '{"a":{"b":"[redacted]","c":2}}'),
        ("body.A.B", '{"a":{"b":1}}', '{"a":{"b":"[redacted]"}}'),
        ("body.a[]", '{"a":[1,"x"]}', '{"a":["[redacted]","[redacted]"]}'),
        ("body.a[1].b", '{"a":[{"b":1},{"b":2}]}', '{"a":[{"b":1},{"b":"[redacted]"}]}'),
        ("body.a.b", '{"a":[{"b":1},[{"b":2}]]}', '{"a":[{"b":"[redacted]"},[{"b":"[redacted]"}]]}'),
        ("body.*.b", '{"x":{"b":1},"y":{"b":2},"b":3}', '{"x":{"b":"[redacted]"},"y":{"b":"[redacted]"},"b":3}'),
        ("body.**.b", '{"b":1,"x":[{"y":{"b":2}}]}', '{"b":"[redacted]","x":[{"y":{"b":"[redacted]"}}]}'),
        ('body."a.b"', '{"a.b":1,"a":{"b":2}}', '{"a.b":"[redacted]","a":{"b":2}}'),
        ("body.a", '{"a":{"b":[1,{"c":"d"}]},"e":1}', '{"a":"[redacted]","e":1}'),
        ("body.a", '{"a":1,"a":"x"}', '{"a":"[redacted]","a":"[redacted]"}'),
        ("body.a", r'{"\u0061":"x"}', r'{"\u0061":"[redacted]"}'),
        ("body.a", '{"a":null,"b":1}', '{"a":null,"b":1}'),
        ("body.a", '{"a":"","b":[{"a":[]},{"a":{}}]}', '{"a":"","b":[{"a":[]},{"a":{}}]}'),
        ("body.a", '{ "b" : 1e400 ,\n "n": 123456789012345678901234567890, "a":"x" }', None),
        ("body", '"secret"', '"[redacted]"'),
        ("body", "not json", '"[redacted]"'),
    ],
)
def test_what_is_at_a_path_becomes_a_marked_string_and_all_else_stays(rule, body, becomes):
    becomes = becomes or body.replace('"x"', '"[redacted]"')
    assert redacted(body.encode(), rule) == becomes


def test_a_body_in_which_nothing_is_named_stays_byte_for_byte():
    body = b'{"a" : 1.50,\t"a":2, "\\u00e9": "\\/"}'
    found = redactor("body.b", "pattern:card").redacted(WholeLetter(letter=letter(body=body)))
    assert found.whole.letter.body == body
    assert not found.is_changed


# Where values are quoted


def test_a_value_is_gone_from_everything_that_the_letter_says():
    found = redactor(*RULES).redacted(whole(BODY))
    data = said(found).lower()
    assert CANARY.encode() not in data
    assert CANARY.replace("@", "%40").encode() not in data
    assert OTHER.encode().lower() not in data
    assert b"c4n4ry" not in data
    left = found.whole.letter
    assert left.message.headers == {"Authorization": "[redacted]", "tenant": "acme"}
    assert 'File "/srv/shop.py", line 7, in ship' in left.traceback
    assert left.original == {"queue": "for-[redacted]", "count": 1}
    assert set(found.hits) == set(RULES)


def test_a_pattern_alone_finds_all_of_them():
    found = redactor("pattern:email", "pattern:c4n4ry[-\\w]*").redacted(whole(BODY))
    assert CANARY.encode() not in said(found).lower()
    assert b"c4n4ry" not in said(found)


@pytest.mark.parametrize("value", ['Zoë "Q" O\'Neil\\x', "ünïcödé name", "tab\tand\nline", "+49 170 1234567", "4929-1"])
def test_a_value_is_found_in_the_forms_in_which_errors_write_it(value):
    body = json.dumps({"name": value}).encode()
    forms = [value, repr(value), repr(body), json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value.encode())]
    found = redactor("body.name").redacted(WholeLetter(letter=letter(body=body, error=" | ".join(forms))))
    kinds = re.sub(r"\[redacted\]", "", found.whole.letter.error)
    assert not re.search(r"neil|d. name|170|4929|c3|tab.t|xfc|u00e", kinds, re.IGNORECASE)


def test_a_long_value_is_found_where_only_a_piece_of_it_is_quoted():
    value = "The parcel for the lady in the red house behind the church, second floor, please ring twice."
    error = f"Input should be short [input_value='{value[:25]}...{value[-24:]}']"
    found = redactor("body.text").redacted(WholeLetter(letter=letter(body=json.dumps({"text": value}).encode(), error=error)))
    assert found.whole.letter.error == "Input should be short [input_value='[redacted]...[redacted]']"


def test_a_short_value_is_found_as_a_word_of_its_own_only():
    body, error = b'{"cvv":"123","age":41}', "cvv 123 on line 1234, aged 41"
    found = redactor("body.cvv", "body.age").redacted(WholeLetter(letter=letter(body=body, error=error)))
    assert found.whole.letter.error == "cvv [redacted] on line 1234, aged 41"


def test_the_fingerprint_is_not_made_of_what_is_redacted():
    given_ = letter(body=BODY, error=f"no {CANARY}", fingerprint="2-0123456789ab")
    assert redactor("body.customer.email").redacted(WholeLetter(letter=given_)).whole.letter.fingerprint == ""
    plain = letter(body=BODY, error="no answer", fingerprint="2-0123456789ab")
    assert redactor("body.customer.email").redacted(WholeLetter(letter=plain)).whole.letter.fingerprint == "2-0123456789ab"


def test_ids_with_a_value_in_them_stay_apart():
    one, other = (quoting(BODY, id=f"{CANARY}-{n}", message_id=f"m-{CANARY}-{n}") for n in (1, 2))
    found = [redactor(*RULES).redacted(WholeLetter(letter=each)).whole for each in (one, other)]
    assert found[0].letter.id != found[1].letter.id
    assert CANARY.encode() not in msgspec.msgpack.encode(found)
    assert all(each.has_identity for each in found)


# Patterns


@pytest.mark.parametrize(
    ("name", "values", "others"),
    [
        ("email", ["a.b+c@x-y.co.uk", "root@localhost", "zoë@müller.de"], ["a at b", "@home", "x @ y"]),
        (
            "card",
            ["4111111111111111", "4111 1111 1111 1111", "5500-0000-0000-0004"],
            ["17 4111", "4111111111111112", "123456", "1" * 30],
        ),
        ("iban", ["DE89370400440532013000", "GB29 NWBK 6016 1331 9268 19"], ["DE00370400440532013000", "XX12"]),
        ("jwt", ["eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl"], ["eyJhbGciOi", "a.b.c"]),
        (
            "phone",
            ["+49 170 1234567", "0049-170/1234567", "+1 (555) 010-9999"],
            ["2026-08-01 09:30", "1700000000", "0.123456789"],
        ),
    ],
)
def test_named_patterns_find_what_they_are_named_after(name, values, others):
    for value in values:
        for before, behind in ("x ", " y"), ("12 ", " you"), ("(", ")"):
            text = json.dumps({"a": f"{before}{value}{behind}"})
            assert redacted(text.encode(), f"pattern:{name}") == json.dumps({"a": f"{before}[redacted]{behind}"})
    for other in others:
        assert NAMED[name].in_text(other) == [], other


def test_a_pattern_finds_numbers_and_names_of_members_and_text_that_is_no_json():
    assert redacted(b'{"pan":4111111111111111,"n":1}', "pattern:card") == '{"pan":"[redacted]","n":1}'
    assert redacted(b'{"ana@x.org":1}', "pattern:email") == '{"[redacted]":1}'
    assert redacted(b"to: ana@x.org, hi", "pattern:email") == "to: [redacted], hi"
    assert redacted(rb'{"a":"ana\u0040x.org"}', "pattern:email") == '{"a":"[redacted]"}'


@given(st.text(alphabet="0123456789aAkKſ\u212a٣² -+()@.", max_size=40))
def test_no_text_is_too_odd_for_a_pattern(text):
    for name in NAMED:
        redacted(json.dumps({"a": text}, ensure_ascii=False).encode(), f"pattern:{name}")


# Hostile bodies


@pytest.mark.parametrize(
    "body",
    [
        b'{"customer":{"email":"' + CANARY.encode(),
        CANARY.encode().hex().encode(),
        CANARY.encode("utf-16-le"),
        b"[" * 200_000 + CANARY.encode(),
        b'{"a":NaN,"customer":{"email":"' + CANARY.encode() + b'"}}',
        CANARY.encode("utf-16"),
        b"\x1f\x8b\x08\0" + CANARY.encode(),
        b'{"a":"\\ud800","b":"' + CANARY.encode() + b'"}',
    ],
    ids=["cut", "hex", "utf-16", "deep", "nan", "bom", "gzip", "surrogate"],
)
def test_a_body_that_cannot_be_looked_into_is_redacted_as_a_whole_and_so_is_what_may_quote_it(body):
    given_ = letter(
        body=body, error=f"bad: {body[:300]!r}", traceback=f"ValueError: {body[:300]!r}", reason=f"invalid {body[:300]!r}"
    )
    found = redactor("body.customer.email").redacted(WholeLetter(letter=given_, native=body)).whole
    assert found.letter.body == b'"[redacted]"'
    assert (found.letter.error, found.letter.traceback, found.letter.reason) == ("[redacted]",) * 3
    assert found.native is None
    assert b"canary" not in msgspec.msgpack.encode(found)


def test_a_deep_body_that_is_json_is_no_fault():
    deep = b'{"a":' * 400 + b'"x"' + b"}" * 400
    assert redacted(deep, "body.**.b") == deep.decode()
    assert redacted(deep, "body.**.a") == '{"a":"[redacted]"}'
    assert redacted(b'{"a":' * 100_000 + b'"x"' + b"}" * 100_000, "body.**.b") == '"[redacted]"'


def test_a_body_of_many_megabytes_is_no_fault():
    body = json.dumps({"rows": ["x" * 1_000] * 20_000, "customer": {"email": CANARY}}).encode()
    found = redactor("body.customer.email").redacted(WholeLetter(letter=letter(body=body, error=f"no {CANARY}")))
    assert CANARY.encode() not in msgspec.msgpack.encode(found.whole)
    long = json.dumps({"text": CANARY * 100_000}).encode()
    found = redactor("body.text").redacted(WholeLetter(letter=letter(body=long, error=long[500:800].decode())))
    assert b"canary" not in msgspec.msgpack.encode(found.whole)


@pytest.mark.parametrize("body", [b"", b"null", b"0", b"[]", b"{}", b'"x"', b" \n", b"1" * 10_000])
def test_bodies_with_nothing_in_them_are_no_fault(body):
    assert redacted(body, "body.a", "key", "header.*", "body.**.b", "pattern:card") in (body.decode(), '"[redacted]"')


# Whatever comes

texts = st.text(max_size=20) | st.sampled_from(["a", "b", CANARY, "[redacted]", "[redacted 0]", "4111111111111111"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
bodies = values.map(lambda value: json.dumps(value).encode()) | values.map(
    lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
)
rules = st.lists(
    st.sampled_from(
        [
            *("body.a", "drop body.a.b", "body.*", "body[0]", "searchable body.**.b", "body", "key", "header.*"),
            *("searchable pattern:email", "pattern:card", r"pattern:\d\d"),
        ]
    ),
    min_size=1,
    max_size=4,
    unique=True,
)


@given(bodies | st.binary(max_size=60), rules, texts, texts)
def test_redacting_twice_is_redacting_once_and_json_stays_json(body, given_rules, error, name):
    rules = redactor(*given_rules)
    start = WholeLetter(letter=letter(body=body, error=error, key=name, headers={name: error}, message_id=name))
    once = rules.redacted(start)
    again = rules.redacted(once.whole)
    assert msgspec.structs.replace(again.whole, letter=once.whole.letter) == once.whole
    assert again.whole.letter == once.whole.letter
    try:
        was = json.loads(body)
    except (ValueError, RecursionError):
        return
    _same_shape(was, json.loads(once.whole.letter.body))


def _same_shape(was, now):
    if isinstance(now, str) and "[redacted" in now:
        return
    assert type(was) is type(now)
    if isinstance(was, dict):
        assert len(was) >= len(now)
        for name in was.keys() & now.keys():
            _same_shape(was[name], now[name])
    elif isinstance(was, list):
        assert len(was) == len(now)
        for one, other in zip(was, now, strict=True):
            _same_shape(one, other)
    else:
        assert was == now


@given(values, st.text(alphabet="abcdefgh@.-XYZ0123456789", min_size=8, max_size=40))
def test_a_value_at_a_path_is_in_nothing_that_is_left(other, secret):
    body = json.dumps({"other": other, "secret": secret}).encode()
    found = redactor("body.secret").redacted(
        WholeLetter(letter=letter(body=body, error=f"x{secret}y", traceback=secret, key=secret, message_id=secret))
    )
    if len(set(secret)) > 1:
        assert secret.encode() not in msgspec.msgpack.encode(found.whole)


def test_a_hash_needs_the_key():
    assert key().token("body.a", "x") != key().token("body.b", "x")
    assert key().token("body.a", "x") == key().token("body.a", "x")
