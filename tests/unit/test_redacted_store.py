"""A store by rules: no clear value is in its files, the original comes back byte for byte with the key, and only audited."""

import json
import sqlite3
import subprocess
import uuid
from array import array
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.labs import SQLiteLab
from tests.unit.filtering import letter
from tests.unit.redacting import CANARY, NEW, OLD, OTHER, bytes_of, key, store_at, whole
from tests.unit.stores import new_store
from unpoison import DLQManager, Filter, OriginalUnavailable
from unpoison.decide.options import Settings
from unpoison.errors import ConfigError, PayloadError
from unpoison.flow.collecting import Collecting
from unpoison.model.dead_letter import DROPPED, ENCRYPTED, WholeLetter
from unpoison.model.message import Outgoing
from unpoison.port.broker import Dead, Settlement
from unpoison.store import schema
from unpoison.store.letters.choice import letters_of
from unpoison.store.letters.collector import _unredacted
from unpoison.store.letters.export import letter_of, line_of
from unpoison.store.letters.values import DELETED, Change, Order, Selection
from unpoison.testing import given as lab_given

RULES = ("searchable body.customer.email", "header.authorization", "key")
BODY = json.dumps({"customer": {"email": CANARY}, "total": 1}).encode()


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return new_store(request, tmp_path)


def stored(store):
    return list(store.page(order=Order.ARRIVAL, is_descending=False).letters)


def dumped(url: str, folder: Path) -> bytes:
    """What is in the database, as its files or its own client have it."""
    if url.startswith("sqlite"):
        return bytes_of(folder)
    with psycopg.connect(url) as connection:
        tables = [name for name in schema.TABLES if name.startswith("unpoison")]
        found = [connection.execute(f"select * from {table}").fetchall() for table in tables]
    return repr(found).encode()


def test_no_clear_value_is_in_the_database_and_the_original_comes_back_as_it_was(url, tmp_path, monkeypatch):
    store = store_at(url, monkeypatch, *RULES)
    packed = b"x" * 9_000 + CANARY.encode()  # it would be compressed
    letters = [
        whole(BODY, native=b"\x81" + CANARY.encode() + OTHER.encode(), id="o-1"),
        whole(packed, id=f"o-2-{CANARY}", message_id=CANARY),
        WholeLetter(letter=letter(body=b'{"total":1}', id="o-3")),
    ]
    assert store.put(letters).new == 3
    store.index_text()
    store.select(Filter.parse(f"{CANARY} or body.customer.email:{CANARY} or key:{CANARY} or body:{CANARY}"))
    for number, each in enumerate(stored(store)):
        assert each.letter.redaction is None if number == 2 else each.letter.redaction.original == ENCRYPTED
        back = store.original(each)
        same = {"id": "", "fingerprint": "", "note": None}  # these are what they are in the store
        was = msgspec.structs.replace(letters[number].letter, **same)
        assert msgspec.structs.replace(back.letter, **same) == was
        assert (back.headers, back.native) == (letters[number].headers, letters[number].native)
    data = dumped(url, tmp_path).lower()
    for clear in (CANARY, CANARY.partition("@")[0], "c4n4ry", CANARY.replace("@", "%40"), CANARY.encode().hex()):
        assert clear.lower().encode() not in data
    store.close()
    assert CANARY.encode() not in dumped(url, tmp_path)


def test_pg_dump_has_no_clear_value(postgresql, tmp_path, monkeypatch):
    url = postgresql.fresh()
    store = store_at(url, monkeypatch, *RULES)
    store.put([whole(BODY, native=CANARY.encode(), id=f"o-{n}") for n in range(3)])
    store.index_text()
    store.close()
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"))
    program = str(programs[-1]) if programs else "pg_dump"
    dump = subprocess.run([program, url], capture_output=True, check=True).stdout
    assert b"unpoison_letter_originals" in dump
    assert b"canary" not in dump.lower()
    assert CANARY.encode().hex().encode() not in dump


def test_every_letter_is_found_by_a_value_that_is_hashed_and_by_no_other(url, monkeypatch):
    store = store_at(url, monkeypatch, *RULES)
    values = [CANARY, "bob@example.org", CANARY.upper()]
    store.put(
        [
            WholeLetter(letter=letter(id=f"o-{n}", body=json.dumps({"customer": {"email": value}}).encode()))
            for n, value in enumerate(values)
        ]
    )
    store.index_text()

    def found(text):
        return [each.letter.id for each in store.page(Filter.parse(text), order=Order.ARRIVAL, is_descending=False).letters]

    assert found(f"body.customer.email:{CANARY}") == ["o-0", "o-2"]
    assert found("body.customer.email:bob@example.org") == ["o-1"]
    assert found("not body.customer.email:bob@example.org") == ["o-0", "o-2"]
    assert found("body.customer.email!=bob@example.org") == ["o-0", "o-2"]
    assert found(CANARY) == ["o-0", "o-2"]
    assert found("body.customer.email:bob*") == []
    assert found("body.customer.name:bob@example.org") == []
    assert store.select(Filter.parse("body.customer.email:bob@example.org")).where == "body.customer.email:[redacted]"
    store.close()
    both = store_at(url, monkeypatch, key=f"{NEW},{OLD}")
    assert both.count(Filter.parse(f"body.customer.email:{CANARY}")) == 2
    both.close()
    without = store_at(url, monkeypatch, key=None)
    assert without.count(Filter.parse(f"body.customer.email:{CANARY}")) == 0
    without.close()


def test_what_a_drop_rule_hits_is_not_kept_and_the_rest_is(url, tmp_path, monkeypatch):
    store = store_at(url, monkeypatch, "body.customer.email", "drop body.card.cvv")
    with_card = json.dumps({"card": {"cvv": "99173"}, "customer": {"email": CANARY}}).encode()
    store.put([WholeLetter(letter=letter(id="o-1", body=with_card)), WholeLetter(letter=letter(id="o-2", body=BODY))])
    dropped, kept = stored(store)
    assert (dropped.letter.redaction.original, kept.letter.redaction.original) == (DROPPED, ENCRYPTED)
    with pytest.raises(OriginalUnavailable, match=r"not kept: a rule of which nothing is kept .*body.card.cvv"):
        store.original(dropped)
    assert store.original(kept).letter.body == BODY
    with store._database.reading() as run:
        assert run("select count(*) from unpoison_letter_originals", ()).fetchall()[0][0] == 1
    store.change(Selection("", array("q", [kept.number])), Change(DELETED, "purged"), by="ann")
    with store._database.reading() as run:
        assert run("select count(*) from unpoison_letter_originals", ()).fetchall()[0][0] == 0
    store.close()


texts = st.text(max_size=30) | st.just(CANARY)
hostile_bodies = st.binary(max_size=300) | st.dictionaries(texts, st.integers() | texts, max_size=4).map(
    lambda value: json.dumps({"customer": {"email": CANARY, **value}}).encode()
)
hostile = st.builds(
    lambda body, native, headers, **facts: WholeLetter(
        letter=letter(body=body, **facts),
        native=native,
        headers=tuple((name, value.encode("utf-8", "ignore")) for name, value in headers),
    ),
    body=hostile_bodies,
    native=st.none() | st.binary(max_size=40),
    headers=st.lists(st.tuples(texts, texts), max_size=2),
    error=texts,
    traceback=texts,
    key=st.none() | texts,
    message_id=texts,
    attempts=st.integers(0, 10**30),
    replays=st.integers(0, 5),
    last_failed_at=st.floats(),
    note=st.none(),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two stores: one with rules and one without."""
    with pytest.MonkeyPatch.context() as patch:
        stores = [
            store_at(f"sqlite:///{tmp_path_factory.mktemp('pair')}/{number}.db", patch, *rules)
            for number, rules in enumerate(([*RULES, "pattern:email", r"pattern:\d{3}"], ()))
        ]
        yield stores
    for store in stores:
        store.close()


@given(hostile, st.booleans())
def test_an_original_is_exactly_what_a_store_without_rules_would_give(pair, each, has_identity):
    each = msgspec.structs.replace(
        each, has_identity=has_identity, letter=msgspec.structs.replace(each.letter, id=uuid.uuid4().hex)
    )
    found = []
    for store in pair:
        assert store.put([each]).new == 1
        (last,) = store.page(order=Order.ARRIVAL, limit=1).letters
        found.append(store.original(last))
    by_rules, plain = (msgspec.structs.replace(whole, letter=msgspec.structs.replace(whole.letter, id="")) for whole in found)
    assert repr(by_rules) == repr(plain)  # NaN is not equal to itself


# Keys


def test_without_a_key_nothing_is_stored_and_the_error_says_what_to_do(url, monkeypatch):
    store = store_at(url, monkeypatch, "body.customer.email", key=None)
    with pytest.raises(
        ConfigError, match=r"'body.customer.email' keeps originals encrypted and UNPOISON_KEY is not set.*openssl"
    ):
        store.put([whole(BODY)])
    assert stored(store) == []
    store.close()


def test_rules_that_keep_nothing_need_no_key(url, tmp_path, monkeypatch):
    store = store_at(url, monkeypatch, "drop body.customer.email", key=None)
    plain = WholeLetter(letter=letter(id="o-2", body=b'{"total":1}'))
    beside = WholeLetter(letter=letter(id="o-3", body=b'{"total":1}'), native=b"envelope")
    store.put([whole(BODY, id="o-1"), plain, beside])
    hit, clear, envelope = stored(store)
    assert (hit.letter.redaction.original, clear.letter.redaction, envelope.letter.redaction.original) == (DROPPED, None, DROPPED)
    assert store.original(clear).letter.body == b'{"total":1}'
    with pytest.raises(OriginalUnavailable, match="no key to encrypt what the broker knew"):
        store.original(envelope)
    assert b"canary" not in dumped(url, tmp_path).lower()
    store.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not base64!", "UNPOISON_KEY is not written in base64"),
        ("c2hvcnQ=", "UNPOISON_KEY has 5 bytes and needs 32"),
        (f"{OLD},c2hvcnQ=", "Key 2 in UNPOISON_KEY has 5 bytes"),
    ],
)
def test_a_key_that_is_none_is_an_error_that_does_not_show_it(text, problem, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=problem) as failed:
        store_at(f"sqlite:///{tmp_path}/s.db", monkeypatch, key=text)
    assert text not in str(failed.value)


def test_a_rotated_key_reads_what_the_old_one_wrote_as_long_as_it_is_there(url, monkeypatch):
    first = store_at(url, monkeypatch, *RULES)
    first.put([whole(BODY, id="o-1")])
    first.close()
    both = store_at(url, monkeypatch, key=f"{NEW},{OLD}")
    both.put([whole(BODY, id="o-2")])
    assert [each.letter.redaction.key for each in stored(both)] == [key(OLD).id, key(NEW).id]
    assert [both.original(each).letter.body for each in stored(both)] == [BODY, BODY]
    both.close()
    new = store_at(url, monkeypatch, key=NEW)
    one, other = stored(new)
    assert new.original(other).letter.body == BODY
    with pytest.raises(OriginalUnavailable, match=rf"encrypted with key {key(OLD).id}, and UNPOISON_KEY has {key(NEW).id}"):
        new.original(one)
    new.put([whole(BODY, id="o-3")])
    new.close()
    lost = store_at(url, monkeypatch, key=None)
    with pytest.raises(OriginalUnavailable, match=rf"key {key(OLD).id}, and UNPOISON_KEY is not set"):
        lost.original(one)
    lost.close()


def test_a_key_that_the_store_has_never_seen_is_refused(url, monkeypatch):
    first = store_at(url, monkeypatch, *RULES)
    first.put([whole(BODY, id="o-1")])
    first.close()
    wrong = store_at(url, monkeypatch, key=NEW)
    with pytest.raises(ConfigError, match=rf"has key {key(NEW).id}, and letters .* encrypted with {key(OLD).id}.*NEW,OLD"):
        wrong.put([whole(BODY, id="o-2")])
    wrong.close()


def test_what_was_changed_in_the_database_is_not_taken_for_an_original(url, monkeypatch):
    store = store_at(url, monkeypatch, *RULES)
    store.put([whole(BODY, id="o-1"), whole(b'{"customer":{"email":"other-7@x.org"}}', id="o-2", last_failed_at=1_799_999_000.0)])
    one, other = stored(store)
    with store._database.writing() as run:
        sealed = {no: bytes(data) for no, data in run("select no, sealed from unpoison_letter_originals", ()).fetchall()}
        swap = "update unpoison_letter_originals set sealed = ? where no = ?"
        run(swap, (sealed[other.number], one.number))
        run(swap, (sealed[other.number][:-1] + bytes([sealed[other.number][-1] ^ 1]), other.number))
    for each in (one, other):
        with pytest.raises(OriginalUnavailable, match="was changed after it was encrypted"):
            store.original(each)
    with store._database.writing() as run:
        run("update unpoison_letter_originals set sealed = ?", (b"",))
    with pytest.raises(OriginalUnavailable, match="was changed"):
        store.original(one)
    with store._database.writing() as run:
        run("delete from unpoison_letter_originals", ())
    with pytest.raises(OriginalUnavailable, match="not in the store any more"):
        store.original(one)
    store.close()


def test_of_two_keys_that_two_processes_begin_with_only_one_is_used(url, monkeypatch):
    one, other = store_at(url, monkeypatch, *RULES), store_at(url, monkeypatch, *RULES, key=NEW)
    one.put([whole(BODY, id="o-1")])
    with pytest.raises(ConfigError, match="letters in this store are encrypted with"):
        other.put([whole(BODY, id="o-2")])
    assert other.redaction.originals_by_key() == {key(OLD).id: 1}
    one.close()
    other.close()


# Rules of the store


def test_a_process_without_rules_takes_those_of_the_store(url, tmp_path, monkeypatch):
    store_at(url, monkeypatch, *RULES).close()
    other = store_at(url, monkeypatch)
    other.put([whole(BODY)])
    assert list(map(str, other.redaction.in_force.rules)) == list(RULES)
    assert b"canary" not in dumped(url, tmp_path).lower()
    other.close()


def test_a_process_that_has_started_before_a_rule_was_added_applies_it_too(url, tmp_path, monkeypatch):
    early = store_at(url, monkeypatch)
    early.put([WholeLetter(letter=letter(id="o-1"))])
    late = store_at(url, monkeypatch, *RULES)
    early.put([whole(BODY)])
    assert b"canary" not in dumped(url, tmp_path).lower()
    (entry,) = late.audit()
    assert (entry.what, entry.before, entry.after) == ("redaction rules", [["rules", []]], [["rules", list(RULES)]])
    early.close()
    late.close()


def test_rules_become_more_by_themselves_and_fewer_only_by_a_person(url, monkeypatch):
    store_at(url, monkeypatch, "body.a").close()
    store = store_at(url, monkeypatch, "body.b")
    assert list(map(str, store.redaction.in_force.rules)) == ["body.a", "body.b"]
    store.redaction.remove([store.redaction.in_force.rules[0]], "ann")
    assert list(map(str, store.redaction.in_force.rules)) == ["body.b"]
    assert store.audit()[0][2:4] == ("ann", "redaction rules")
    store.close()


@pytest.mark.parametrize("since", [5])
def test_tables_of_the_version_before_get_rules_and_keep_their_letters(url, since, monkeypatch):
    script = (schema.MIGRATIONS if url.startswith("sqlite") else schema.MIGRATIONS_OF_POSTGRESQL)[:since]
    _run(url, schema.statements(script))
    store = store_at(url, monkeypatch, *RULES)
    store.put([whole(BODY)])
    assert stored(store)[0].letter.redaction.original == ENCRYPTED
    store.close()


def _run(url, script):
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        with psycopg.connect(url) as connection:
            connection.execute(script)


# Seeing and sending


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "lab").mkdir()
    with SQLiteLab(tmp_path / "lab") as lab:
        yield lab


def give_up(lab, *bodies):
    broker = lab.broker("orders")
    lab_given.publish(broker, [Outgoing(f"m-{n}", "orders", body, CANARY) for n, body in enumerate(bodies)])
    broker.settle(Settlement(dead=[Dead(each, lab_given.letter_of(each)) for each in broker.fetch("orders", len(bodies))]))


def manager(lab, folder, *rules):
    return DLQManager(letters_of(lab.url, f"sqlite:///{folder}/letters.db", "orders", redact=rules), "orders")


def test_a_replay_sends_the_original_byte_for_byte(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", OLD)
    give_up(lab, BODY, b"\xff" + CANARY.encode(), b"1")
    with manager(lab, tmp_path, *RULES) as dlq:
        assert [each.body for each in dlq.peek()][1] == b'"[redacted]"'
        assert dlq.replay_all().count == 3
    sent = lab.broker("orders").fetch("orders", 10)
    assert [(each.body, each.key) for each in sent] == [(BODY, CANARY), (b"\xff" + CANARY.encode(), CANARY), (b"1", CANARY)]


def test_the_audit_log_of_a_replay_has_no_value_that_was_searched_for(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", OLD)
    give_up(lab, BODY)
    with manager(lab, tmp_path, *RULES) as dlq:
        assert dlq.replay_all(where=f"body.customer.email:{CANARY} {CANARY} not key:{CANARY}").count == 1
        entry = dlq._letters.store.audit()[0]
        assert (entry.after, entry.about) == ("replayed", "body.customer.email:[redacted] [redacted] not key:[redacted]")
    assert not [file for file in tmp_path.glob("letters.db*") if b"canary" in file.read_bytes()]


def test_a_letter_whose_original_is_not_kept_is_refused_and_never_sent_redacted(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", OLD)
    give_up(lab, BODY, b'{"cvv":"123"}')
    with manager(lab, tmp_path, "body.customer.email", "drop body.cvv") as dlq:
        with pytest.raises(
            PayloadError, match=r"1 dead letter could not be sent.*1 were sent.*original is not kept.*\(body.cvv\)"
        ):
            dlq.replay_all()
        assert [each.body for each in dlq.peek()] == [b'{"cvv":"[redacted]"}']
    assert [each.body for each in lab.broker("orders").fetch("orders", 10)] == [BODY]
    monkeypatch.delenv("UNPOISON_KEY")


def test_a_replay_without_the_key_sends_nothing_and_says_which_key(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", OLD)
    give_up(lab, BODY)
    with manager(lab, tmp_path, *RULES) as dlq:
        assert len(dlq.peek()) == 1
    monkeypatch.delenv("UNPOISON_KEY")
    give_up(lab, b"2")
    with manager(lab, tmp_path) as dlq:
        with pytest.raises(PayloadError, match=rf"encrypted with key {key().id}, and UNPOISON_KEY is not set"):
            dlq.replay_all()
        assert (dlq.count(), len(dlq.peek())) == (2, 1)
    assert lab.broker("orders").fetch("orders", 10) == ()


def test_to_reveal_is_noted_before_anything_is_shown(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", OLD)
    give_up(lab, BODY)
    with manager(lab, tmp_path, *RULES) as dlq:
        (letter_,) = dlq.peek()
        with pytest.raises(ConfigError, match="Say why"):
            dlq.reveal(letter_.id, reason=" ")
        assert dlq._letters.store.audit()[0].what == "redaction rules"
        shown = dlq.reveal(letter_.id, reason="ticket 4711")
        assert (shown.body, shown.message.key, shown.id) == (BODY, CANARY, letter_.id)
        entry = dlq._letters.store.audit()[0]
        assert (entry.what, entry.after, entry.about, entry.letters) == ("revealed", "ticket 4711", f"id:{letter_.id}", 1)
    monkeypatch.setenv("UNPOISON_KEY", NEW)
    with manager(lab, tmp_path) as dlq:
        with pytest.raises(OriginalUnavailable, match="encrypted with key"):
            dlq.reveal(letter_.id, reason="try")
        assert dlq._letters.store.audit()[0].after == "try"


def test_the_collector_of_a_consumer_redacts_and_does_not_start_without_its_key(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", OLD)
    give_up(lab, BODY)
    settings = Settings(lab.url, f"sqlite:///{tmp_path}/letters.db", collect=True, redact=RULES)
    collecting = Collecting(settings, "orders")
    collecting.step(lambda: True)
    collecting.disconnect()
    for file in tmp_path.glob("letters.db*"):
        assert b"canary" not in file.read_bytes()
    monkeypatch.delenv("UNPOISON_KEY")
    with pytest.raises(ConfigError, match="UNPOISON_KEY is not set"):
        Collecting(settings, "orders")


def test_a_letter_in_a_dlq_that_says_that_it_is_redacted_is_not_believed(tmp_path, monkeypatch):
    store = store_at(f"sqlite:///{tmp_path}/s.db", monkeypatch, *RULES)
    store.put([whole(BODY)])
    each = store.redaction.sealed(stored(store)[0]).whole
    assert _unredacted(each).letter.redaction is None
    assert _unredacted(each).sealed is None
    store.close()


def test_an_exported_letter_is_redacted_and_its_original_comes_along_encrypted(tmp_path, monkeypatch):
    one = store_at(f"sqlite:///{tmp_path}/one.db", monkeypatch, *RULES)
    one.put([whole(BODY, native=CANARY.encode())])
    line = line_of(one.redaction.sealed(stored(one)[0]))
    assert b"canary" not in line.lower()
    one.close()
    other = store_at(f"sqlite:///{tmp_path}/other.db", monkeypatch)
    assert other.put([letter_of(line)]).new == 1
    (found,) = stored(other)
    assert other.original(found).letter.body == BODY
    assert other.original(found).native == CANARY.encode()
    other.close()


def test_an_imported_letter_is_redacted_by_the_rules_that_hold_where_it_comes(tmp_path, monkeypatch):
    one = store_at(f"sqlite:///{tmp_path}/one.db", monkeypatch)
    one.put([whole(BODY)])
    line = line_of(stored(one)[0])
    one.close()
    (tmp_path / "new").mkdir()
    other = store_at(f"sqlite:///{tmp_path}/new/other.db", monkeypatch, *RULES)
    other.put([letter_of(line)])
    assert b"canary" not in bytes_of(tmp_path / "new").lower()
    assert other.original(stored(other)[0]).letter.body == BODY
    other.close()


def test_letters_without_an_identity_are_duplicates_by_their_original(tmp_path, monkeypatch):
    store = store_at(f"sqlite:///{tmp_path}/s.db", monkeypatch, *RULES)
    bodies = [json.dumps({"customer": {"email": f"{n}@example.org"}}).encode() for n in (1, 2, 1)]
    found = store.put([WholeLetter(letter=letter(body=body, key=None), has_identity=False) for body in bodies])
    assert (found.new, found.duplicates) == (3, 1)
    store.close()
