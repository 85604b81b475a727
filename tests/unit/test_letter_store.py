"""What the store promises about dead letters: every letter is kept as it is, once, and counted."""

import math
import random
import threading
from collections import Counter
from functools import partial

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit import sqlite_files
from tests.unit.filtering import NOW, letter, letters
from tests.unit.letter_stores import all_of, arrivals, counted_again, counts_in, emptied, many, opened
from tests.unit.stores import Clock, in_new_schema, new_store
from unpoison.errors import PayloadError, StoreUnavailable
from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import WholeLetter
from unpoison.model.failure import Crash
from unpoison.model.fingerprint import renewed
from unpoison.model.letter_group import grouped
from unpoison.model.message import Message, Outgoing, PastAttempt
from unpoison.store import sqlite
from unpoison.store.letters import writing as letter_writing
from unpoison.store.letters.bodies import PACKED_FROM
from unpoison.store.letters.counts import Changes
from unpoison.store.letters.export import letter_of, line_of
from unpoison.store.letters.values import Ingested, Order
from unpoison.testing.processes import Child, Gate


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return new_store(request, tmp_path)


@pytest.fixture
def store(url):
    store = opened(url)
    yield store
    store.close()


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


# What is kept

texts = st.text(max_size=12) | st.sampled_from(["", "\0", "a\0b\ufffd", "É" * 3, "\U0001f9e8"])
bodies = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([b"", b"null", b'{"a":"\\u0000"}', b"\xef\xbb\xbf{}", b"[" * 3_000, b'{"a":1e999}', b"\r\n", b"\0"]),
    st.binary(min_size=1, max_size=3).map(lambda part: part * PACKED_FROM),
    st.text(min_size=1, max_size=3).map(lambda part: part.encode() * PACKED_FROM),
)
headers = st.lists(
    st.tuples(texts, st.one_of(st.binary(max_size=6), texts, st.integers(-(2**63), 2**63), st.none(), st.booleans())), max_size=4
).map(tuple)
crashes = st.none() | st.builds(
    Crash, signal=st.none() | texts, exit_code=st.none() | st.integers(0, 255), stack=texts, log=texts
)
histories = st.lists(st.builds(PastAttempt, st.integers(0, 9), st.floats(0, 2**31), texts, texts), max_size=3).map(tuple)


@st.composite
def whole_letters(draw):
    one = draw(letters)
    message = Message(
        draw(texts),
        "orders",
        draw(bodies),
        draw(st.none() | texts),
        draw(st.dictionaries(texts, texts, max_size=3)),
    )
    if draw(st.integers(0, 9)) == 0:
        message = Message(message.id, message.source, b"", message.key, message.headers, is_tombstone=True)
    facts = {name: draw(texts) for name in ("error", "traceback", "rule", "reason", "consumer", "classification")}
    facts |= {name: draw(st.none() | texts) for name in ("code_version",)}
    facts |= {name: draw(st.none() | st.sampled_from(["", "É", "see #7"])) for name in ("note", "owner")}
    facts |= {"crash": draw(crashes), "history": draw(histories), "message": message}
    facts |= {"original": draw(st.dictionaries(texts, texts | st.integers(-(2**70), 2**70), max_size=2))}
    facts |= {"attempts": draw(st.sampled_from([0, 3, 10**30, -(10**20)])), "replays": draw(st.integers(0, 5))}
    return msgspec.structs.replace(one, **facts)


whole_arrivals = st.builds(
    WholeLetter,
    letter=whole_letters(),
    place=st.sampled_from(["", "orders.DLT"]),
    headers=headers,
    native=st.none() | st.binary(max_size=9),
)


def plain(letter):
    """Comparable, although no time that is not a number equals itself."""
    return repr(msgspec.structs.replace(letter, message=msgspec.structs.replace(letter.message, headers={}))), dict(
        letter.message.headers
    )


def assert_kept(store, arrival):
    emptied(store)
    assert store.put([arrival]) == Ingested(1)
    (found,) = all_of(store)
    assert plain(found.letter) == plain(renewed(arrival.letter))
    assert (found.place, found.headers, found.native) == (arrival.place, arrival.headers, arrival.native)
    assert store.get(found.number) == found or math.isnan(arrival.letter.last_failed_at + arrival.letter.first_failed_at)


@given(whole_arrivals)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_sqlite_keeps_every_letter_as_it_is(sqlite_store, arrival):
    assert_kept(sqlite_store, arrival)


@given(whole_arrivals)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_postgresql_keeps_every_letter_as_it_is(postgresql_store, arrival):
    assert_kept(postgresql_store, arrival)


@given(whole_arrivals)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_letter_that_is_exported_and_imported_is_the_same(sqlite_store, arrival):
    emptied(sqlite_store)
    sqlite_store.put([arrival])
    (before,) = all_of(sqlite_store)
    line = line_of(before)
    assert line.count(b"\n") == 1
    emptied(sqlite_store)
    assert sqlite_store.put([letter_of(line)]) == Ingested(1)
    (after,) = all_of(sqlite_store)
    assert plain(after.letter) == plain(before.letter)
    assert (after.place, after.headers, after.native) == (before.place, before.headers, before.native)
    assert line_of(after) == line


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[1]", b'{"body":"x","exact":"AAAA"}', b'{"body":1,"exact":""}', b"\xff", b'{"exact":7}']
)
def test_a_line_that_is_no_letter_is_refused(line):
    with pytest.raises(PayloadError, match="is no letter that unpoison dlq export has written"):
        letter_of(line)


def test_a_tombstone_is_no_empty_body(store):
    store.put(arrivals([letter(body=b""), letter()]))
    tombstone = msgspec.structs.replace(letter(id="t"), message=Message("m", "orders", b"", is_tombstone=True))
    store.put([WholeLetter(letter=tombstone)])
    assert [(each.letter.body, each.letter.is_tombstone) for each in all_of(store)] == [(b"", False), (b"{}", False), (b"", True)]


def test_keys_and_ids_of_any_length_are_kept_and_found(store):
    long = "".join(chr(97 + byte % 26) for byte in random.Random(1).randbytes(20_000))
    one = letter(id=f"orders-{long}", message_id=f"m-{long}", key=f"K-{long}")
    assert store.put([WholeLetter(letter=one), WholeLetter(letter=letter(id="orders-2", key="K-short"))]) == Ingested(2)
    assert store.put([WholeLetter(letter=one)]) == Ingested(known=1)
    (found,) = (each for each in all_of(store) if each.letter.message.key != "K-short")
    assert (found.letter.message.key, found.letter.message.id) == (one.message.key, one.message.id)
    for where in (f"key:k-{long[:3_900]}*", f"id:M-{long[:3_900]}*", f"id:{one.id[:300]}*"):
        assert [each.letter.message.key for each in store.page(Filter.parse(where)).letters] == [one.message.key]
    part = WholeLetter(letter=letter(id="orders-3", key=f"K-{long[:2_000]}"))
    store.put([part])
    assert [each.letter.id for each in store.page(Filter.parse(f"key:k-{long[:2_000]}")).letters] == ["orders-3"]
    assert store.page(Filter.parse(f"key:k-{long[:1_999]}")).letters == ()


def test_a_version_or_classification_of_any_length_is_kept_as_it_is(store):
    long = random.Random(2).randbytes(10_000).hex()  # PostgreSQL would compress what repeats
    strange = letter(code_version=f"v{long}", classification=f"c{long}", fingerprint=f"f{long}")
    store.put([WholeLetter(letter=strange)])
    (found,) = all_of(store)
    assert (found.letter.code_version, found.letter.classification) == (f"v{long}", f"c{long}")


def test_half_a_character_stops_no_letter(store):
    half = letter(error="\ud800", key="\udc80", headers={"\ud800": "\0"}, traceback="\ud800", id="orders-\ud800")
    store.put([WholeLetter(letter=half, headers=(("\ud800", 2**80),)), WholeLetter(letter=letter(id="orders-?"))])
    first, second = all_of(store)
    assert (first.letter.error, dict(first.letter.message.headers)) == ("?", {"?": "\0"})
    assert second.letter.id == "orders-?"
    assert first.letter.id.startswith("orders-?~")


def test_a_letter_whose_rows_somebody_has_changed_is_shown_as_far_as_it_goes(store):
    store.put(arrivals([letter(body=b"\xff\xfe"), letter()]))
    with store._database.writing() as run:
        run("update unpoison_letter_contents set record = ? where no = 1", ("{",))
    first, second = all_of(store)
    assert (first.letter.error_type, first.letter.body, first.number) == ("unpoison.Unreadable", b"\xff\xfe", 1)
    assert second.letter.error_type == "KeyError"


# Once


def test_a_letter_that_the_store_has_is_folded_whatever_has_become_of_it(store):
    batch = many(10)
    assert store.put(batch[:6]) == Ingested(new=6)
    with store._database.writing() as run:
        run("update unpoison_letters set state = 'discarded' where no <= 3", ())
    before = counts_in(store)
    assert store.put(batch[:6] + batch[:2]) == Ingested(known=8)
    assert counts_in(store) == before
    assert store.put(batch) == Ingested(new=4, known=6)
    assert [each.letter.state for each in all_of(store)] == ["discarded"] * 3 + ["dead"] * 7


def test_another_letter_under_an_id_that_the_store_knows_is_kept_and_each_is_folded(store):
    """Kafka counts offsets anew in a topic that was deleted and made again, and so does a SQLite file."""
    old = WholeLetter(letter=letter(id="orders-1", body=b"old"))
    new = WholeLetter(letter=letter(id="orders-1", body=b"new", last_failed_at=NOW + 5))
    assert store.put([old]) == Ingested(1)
    assert store.put([new, old, new]) == Ingested(1, 2)
    assert store.put([old, new]) == Ingested(0, 2)
    assert [each.letter.body for each in all_of(store)] == [b"old", b"new"]
    (first, second) = [each.letter.id for each in all_of(store)]
    assert first == "orders-1"
    assert second.startswith("orders-1~")


def test_two_letters_of_one_id_that_come_together_are_both_kept(store):
    both = [WholeLetter(letter=letter(id="orders-1", body=b"%d" % n, last_failed_at=NOW + n)) for n in range(2)]
    assert store.put([*both, both[1]]) == Ingested(2, 1)
    assert store.put(both[::-1]) == Ingested(0, 2)


def test_letters_of_one_id_in_two_places_or_sources_are_two(store):
    same = [
        WholeLetter(letter=letter(id="7")),
        WholeLetter(letter=letter(id="7", source="parcels")),
        WholeLetter(letter=letter(id="7"), place="orders.DLT"),
    ]
    assert store.put(same * 2) == Ingested(new=3, known=3)
    assert [each.number for each in store.find("7")] == [1, 2, 3]
    assert [each.number for each in store.find("7", "orders")] == [1, 3]
    assert [each.number for each in store.find("7", "orders", "")] == [1]
    assert [each.number for each in store.find("7", place="orders.DLT")] == [3]
    assert store.find("8") == []


def test_without_an_identity_an_equal_letter_is_kept_and_marked(store):
    one, other = WholeLetter(letter=letter(), has_identity=False), WholeLetter(letter=letter(body=b"other"), has_identity=False)
    assert store.put([one, other]) == Ingested(new=2)
    assert store.put([other, one, one]) == Ingested(new=3, duplicates=3)
    found = all_of(store)
    assert [each.duplicate_of for each in found] == [None, None, 2, 1, 1]
    assert len({each.letter.id for each in found}) == 5
    assert all(each.letter.id.startswith("orders-1~") for each in found)


def test_numbers_are_given_in_the_order_of_arrival(store):
    store.put(many(3))
    store.put(many(100))
    assert [each.letter.id for each in all_of(store)] == [f"orders-{number}" for number in range(100)]


# Counted


def test_what_is_counted_is_what_there_is(store):
    store.put(many(150))
    store.put(many(200))
    assert counts_in(store) == counted_again(store)
    assert store.count() == 200
    assert sum(counts_in(store)["tracebacks"].values()) < 200  # some have none
    assert len(counts_in(store)["tracebacks"]) == 4


def test_groups_are_those_that_counting_letters_gives(store):
    batch = many(300)
    store.put(batch)
    expected = grouped(renewed(each.letter) for each in batch)
    found = store.groups()
    assert [group.fingerprint for group in found] == [group.fingerprint for group in expected]
    for group, wanted in zip(found, expected, strict=True):
        assert (group.count, group.first_seen, group.last_seen) == (wanted.count, wanted.first_failed_at, wanted.last_failed_at)
        assert {source: sum(states.values()) for source, states in group.counts.items()} == wanted.sources
        assert (group.error_type, group.error, group.classification) == (wanted.error_type, wanted.error, wanted.classification)
        assert store.get(group.sample).letter.last_failed_at == wanted.last_failed_at
        assert set(group.versions) == {"1.0", "1.1"}
        assert group.trend == {}
    assert [group.fingerprint for group in store.groups(limit=2)] == [group.fingerprint for group in expected[:2]]
    assert store.groups(limit=0) == []


def test_letters_with_an_old_fingerprint_are_grouped_anew_and_keep_what_was_said_of_them(store):
    now = many(250)
    store.put(now)
    right = {each.number: each.letter.fingerprint for each in all_of(store)}
    with store._database.writing() as run:
        for table in ("unpoison_letters", "unpoison_letter_counts", "unpoison_letter_groups", "unpoison_letter_hours"):
            run(f"update {table} set fingerprint = substr(fingerprint, 3)", ())
    old, new = right[1][2:], right[1]
    store.change_group(old, by="ada", note="ask billing", owner="ann")
    told = []
    assert store.regroup(lambda *each: told.append(each)) == 250
    assert told[-1] == (250, 250)
    assert {each.number: each.letter.fingerprint for each in all_of(store)} == right
    assert sum(group.count for group in store.groups()) == 250
    assert {group.fingerprint: group.count for group in store.groups()} == Counter(right.values())
    assert {group.fingerprint: group.work.owner for group in store.groups()}[new] == "ann"
    assert sum(store.counts(name)["dead"] for name in ("orders", "parcels")) == 250
    assert store.regroup() == 0


def test_a_group_that_was_seen_again_has_its_latest_letter_as_sample(store):
    store.put(arrivals([letter(last_failed_at=NOW), letter(last_failed_at=NOW - 10, first_failed_at=NOW - 99)]))
    (group,) = store.groups()
    assert (group.sample, group.first_seen, group.last_seen) == (1, NOW - 99, NOW)
    store.put([WholeLetter(letter=letter(id="later", last_failed_at=NOW + 1, first_failed_at=NOW))])
    (group,) = store.groups()
    assert (group.sample, group.first_seen, group.last_seen) == (3, NOW - 99, NOW + 1)


def test_the_trend_counts_letters_by_the_hour_in_which_they_failed(store):
    hour = int(NOW // 3_600)
    times = [NOW, NOW - 1, NOW - 7_200, NOW - 400_000, math.nan, math.inf]
    store.put(arrivals([letter(last_failed_at=time) for time in times]))
    (group,) = store.groups(trend_since=NOW - 86_400)
    assert group.trend == {hour: 2, hour - 1: 1, hour - 2: 1}  # a time that is none counts when the letter came


def test_groups_of_a_filter_have_only_what_matches(store):
    store.put(many(200))
    whole = {group.fingerprint: group for group in store.groups()}
    for text in ("source:orders", "error:error3", "body.kind:3", "state:dead source:parcels", "state:replayed"):
        where = Filter.parse(text)
        matching = [each.letter for each in all_of(store) if where.matches(each.letter)]
        found = store.groups(where)
        assert [(group.fingerprint, group.count) for group in found] == [(g.fingerprint, g.count) for g in grouped(matching)]
        assert all(group.last_seen == whole[group.fingerprint].last_seen for group in found)


# In order


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("text", [None, "error:error2", "body.kind:2", "source:orders state:dead"])
def test_pages_have_every_letter_once_in_both_directions(store, order, text):
    store.put(many(60))
    where = None if text is None else Filter.parse(text)
    expected = [each for each in all_of(store) if where is None or where.matches(each.letter)]
    if order is Order.TIME:
        expected.sort(key=lambda each: (each.letter.last_failed_at, each.number))
    for is_descending in (False, True):
        pages, after = [], None
        while True:
            page = store.page(where, order=order, is_descending=is_descending, after=after, limit=7)
            pages.append(page)
            after = page.next
            if after is None:
                break
        assert [each for page in pages for each in page.letters] == (expected[::-1] if is_descending else expected)
        assert all(len(page.letters) == 7 for page in pages[:-1])
        first = pages[1].letters[0] if len(pages) > 1 else None
        if first is not None:
            position = type(pages[0].next)(first.letter.last_failed_at, first.number)
            back = store.page(where, order=order, is_descending=not is_descending, after=position, limit=7)
            assert back.letters == pages[0].letters[::-1]


def test_a_page_of_large_letters_is_shorter(store, monkeypatch):
    monkeypatch.setattr("unpoison.store.letters.reading.READ_BYTES", 10_000)
    store.put(arrivals([letter(body=b"%d" % size * size) for size in (9_000, 3_000, 4_000, 2_000)]))
    page = store.page(order=Order.ARRIVAL, is_descending=False)
    assert [each.number for each in page.letters] == [1]
    page = store.page(order=Order.ARRIVAL, is_descending=False, after=page.next)
    assert [each.number for each in page.letters] == [2]


def test_a_letter_that_arrives_meanwhile_is_not_chosen(store):
    store.put(many(30))
    walk = store._letters.matching(store._letters.meant(None, None, NOW), Order.ARRIVAL, is_descending=False, chunk=5)
    seen = [next(walk).number]
    store.put(many(60))
    assert seen + [each.number for each in walk] == list(range(1, 31))


# A transaction at a time


class Stopwatch:
    """A transaction in which each chunk takes this long."""

    def __init__(self, chunk: float) -> None:
        self.now, self.chunk = 0.0, chunk

    def __call__(self) -> float:
        self.now += self.chunk
        return self.now


def transactions(store, monkeypatch):
    """How many letters each transaction wrote, and whether it was synced."""
    written = []
    original = store._database.writing

    def writing(*, durable=True):
        written.append([0, durable])
        return original(durable=durable)

    def counting(run, letters, *more):
        written[-1][0] += len(letters)
        return write(run, letters, *more)

    write = letter_writing._write
    monkeypatch.setattr(store._database, "writing", writing)
    monkeypatch.setattr(letter_writing, "_write", counting)
    return written


@pytest.mark.parametrize(("chunk", "rows"), [(0.001, 5), (0.002, 3), (0.006, 1), (1.0, 1)])
def test_a_transaction_in_a_sqlite_file_ends_when_it_has_taken_half_of_10_ms(tmp_path, monkeypatch, chunk, rows):
    store = opened(f"sqlite:///{tmp_path}/fleet.db", stopwatch=Stopwatch(chunk))
    assert sqlite.MOST_HELD == 0.01
    written = transactions(store, monkeypatch)
    store.put(many(letter_writing.CHUNK * 20 + 1))
    counts = [count for count, _ in written]
    assert counts == [letter_writing.CHUNK * rows] * (20 // rows) + [letter_writing.CHUNK * (20 % rows)] * bool(20 % rows) + [1]
    assert [durable for _, durable in written] == [False] * (len(written) - 1) + [True]
    assert counts_in(store) == counted_again(store)
    store.close()


def test_a_large_letter_is_written_in_a_chunk_of_its_own(tmp_path, monkeypatch):
    store = opened(f"sqlite:///{tmp_path}/fleet.db", stopwatch=Stopwatch(1.0))
    written = transactions(store, monkeypatch)
    small, large = letter(), letter(body=b"x" * letter_writing.CHUNK_BYTES)
    store.put(arrivals([small, large, small, small, large]))
    assert [count for count, _ in written] == [1, 1, 2, 1]
    store.close()


def test_letters_and_their_counts_are_written_together_or_not_at_all(store, monkeypatch):
    store.put(many(40))
    before, numbers = counts_in(store), [each.number for each in all_of(store)]

    def fails(changes, run):
        raise StoreUnavailable("The disk is full.")

    with monkeypatch.context() as broken:
        broken.setattr(Changes, "write", fails)
        with pytest.raises(StoreUnavailable, match="The disk is full"):
            store.put(many(80))
    assert (counts_in(store), [each.number for each in all_of(store)]) == (before, numbers)
    assert store.put(many(80)) == Ingested(new=40, known=40)
    assert counts_in(store) == counted_again(store)


def test_a_kill_at_any_statement_leaves_counts_that_are_right(url):
    batch = many(letter_writing.CHUNK * 3)
    at = 1
    while True:
        child = Child(partial(_killed, url, at, batch))
        code = child.wait()
        store = opened(url)
        assert counts_in(store) == counted_again(store)
        if code == 0:
            assert store.count() == len(batch)
            store.close()
            return
        store.close()
        at += 3


def _killed(url, at, batch):
    import os  # noqa: PLC0415

    store = opened(url, stopwatch=Stopwatch(1.0))
    original, ran = store._database.writing, 0

    class Counting:
        def __init__(self, transaction):
            self.transaction = transaction

        def __enter__(self):
            run = self.transaction.__enter__()

            def counted(statement, values):
                nonlocal ran
                ran += 1
                if ran == at:
                    os._exit(9)
                return run(statement, values)

            return counted

        def __exit__(self, *error):
            return self.transaction.__exit__(*error)

    store._database.writing = lambda *, durable=True: Counting(original(durable=durable))
    store.put(batch)
    store.close()


def test_writers_at_once_keep_every_letter_once_and_wait_for_nobody_for_ever(url):
    opened(url).close()
    start = Gate("start")

    def write(seed: int) -> None:
        batch = many(120)
        start.wait()
        store = opened(url)
        for part in range(0, 120, 40):
            some = batch[part : part + 40]
            store.put(some[::-1] if seed % 2 else some)
        store.close()

    children = [Child(partial(write, seed)) for seed in range(3)]
    start.open()
    assert [child.wait() for child in children] == [0] * 3
    store = opened(url)
    assert store.count() == 120
    assert counts_in(store) == counted_again(store)
    assert sorted(each.number for each in all_of(store)) == list(range(1, 121))
    store.close()


def test_a_broker_in_the_same_file_goes_on_while_letters_are_stored(tmp_path):
    file = tmp_path / "shop.db"
    broker = sqlite_files.opened(file, "orders")
    store = opened(f"sqlite:///{file}")
    thread = threading.Thread(target=store.put, args=[many(600)])
    thread.start()
    for number in range(20):
        broker.publish([Outgoing(f"m-{number}", "orders", b"{}")])
    thread.join()
    assert store.count() == 600
    store.close()
    broker.close()


def test_a_store_that_is_not_open_says_so(tmp_path):
    store = opened(f"sqlite:///{tmp_path}/fleet.db", Clock())
    store.close()
    with pytest.raises(StoreUnavailable, match="is not open"):
        store.put(many(1))
    store.open()
    assert store.put(many(1)) == Ingested(new=1)
    store.close()
