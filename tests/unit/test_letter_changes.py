"""Letters and groups are changed once each, with their counts and with an entry in the audit log."""

import random

import pytest

from tests.unit.filtering import NOW, letter
from tests.unit.letter_stores import all_of, arrivals, counted_again, counts_in, many, opened
from tests.unit.stores import Clock, new_store
from tests.unit.test_letter_store import Stopwatch
from unpoison.errors import StoreUnavailable
from unpoison.filters.filter import Filter
from unpoison.model.dead_letter import WholeLetter
from unpoison.store.letters import audit, changes
from unpoison.store.letters.values import DELETED, NOTE, OWNER, STATE, AuditEntry, Change, Changed, Selection
from unpoison.store.rows import insert

ADA = "ada@desk"
GROUP = "9-0a1b2c3d4e5f"


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    return new_store(request, tmp_path)


@pytest.fixture
def clock():
    return Clock(NOW)


@pytest.fixture
def store(url, clock):
    store = opened(url, clock)
    yield store
    store.close()


def states(store):
    return "".join(each.letter.state[0] for each in all_of(store))


# Letters


def test_chosen_letters_are_changed_and_no_others(store):
    store.put(many(10))
    chosen = store.select(Filter.parse("source:orders"), state="dead")
    expected = {each.number for each in all_of(store) if each.letter.source == "orders"}
    store.put(many(20))
    assert store.change(chosen, Change(STATE, "discarded"), by=ADA) == Changed(len(expected))
    assert {each.number for each in all_of(store) if each.letter.state == "discarded"} == expected
    assert counts_in(store) == counted_again(store)
    assert store.count(state="discarded") == len(expected)
    assert sum(group.counts["orders"].get("discarded", 0) for group in store.groups(Filter.parse("source:orders"))) == len(
        expected
    )


def test_only_what_waits_is_replayed_or_discarded_and_only_the_rest_is_restored(store):
    store.put(many(6))
    everything = store.select()
    some = store.select(Filter.parse("id:orders-0 or id:orders-1"))
    assert store.change(some, Change(STATE, "replayed"), by=ADA) == Changed(2)
    assert store.change(everything, Change(STATE, "discarded"), by=ADA) == Changed(4, gone=2)
    assert states(store) == "rrdddd"
    assert store.change(everything, Change(STATE, "replayed"), by=ADA) == Changed(0, gone=6)
    assert store.change(some, Change(STATE, "dead"), by=ADA) == Changed(2)
    assert [each.letter.state for each in all_of(store)] == ["dead"] * 2 + ["discarded"] * 4
    assert counts_in(store) == counted_again(store)


def test_a_letter_that_was_restored_after_its_replay_counts_it_and_is_still_the_same_letter(store):
    letters = many(2)
    store.put(letters)
    first = store.select(Filter.parse("id:orders-0"))
    for _ in range(2):
        store.change(first, Change(STATE, "replayed"), by=ADA)
        store.change(first, Change(STATE, "dead"), by=ADA)
    assert [each.letter.replays for each in all_of(store)] == [2, 0]
    assert store.put(letters).new == 0, "a collector that was killed brings it again"


def test_each_change_is_in_the_audit_log_with_what_was_before(store, clock):
    store.put(many(6))
    store.change(store.select(Filter.parse("id:orders-1")), Change(STATE, "replayed"), by="bob@desk")
    clock.now += 60
    store.change(store.select(Filter.parse("attempts>=1")), Change(NOTE, "see #7"), by=ADA)
    store.change(store.select(), Change(STATE, "discarded"), by=ADA)
    store.change(store.select(), Change(DELETED), by=ADA)
    deleted, discarded, noted, replayed = store.audit()
    assert replayed == AuditEntry(1, NOW, "bob@desk", "state", "id:orders-1", 1, [["dead", "2"]], "replayed")
    assert noted == AuditEntry(2, NOW + 60, ADA, "note", "attempts>=1", 6, [[None, "1-6"]], "see #7")
    assert discarded == AuditEntry(3, NOW + 60, ADA, "state", "", 5, [["dead", "1,3-6"]], "discarded")
    assert deleted == AuditEntry(4, NOW + 60, ADA, "deleted", "", 6, [["discarded", "1,3-6"], ["replayed", "2"]], None)
    assert store.audit(limit=1) == [deleted]
    assert store.audit(before=3) == [noted, replayed]


def test_notes_and_owners_are_changed_where_they_differ(store):
    store.put(many(3))
    one = store.select(Filter.parse("id:orders-1"))
    assert store.change(one, Change(OWNER, "ada"), by=ADA) == Changed(1)
    assert store.change(store.select(), Change(OWNER, "ada"), by=ADA) == Changed(2, gone=1)
    assert [each.letter.owner for each in all_of(store)] == ["ada"] * 3
    assert store.change(one, Change(OWNER), by=ADA) == Changed(1)
    assert store.get(2).letter.owner is None
    assert [entry.before for entry in store.audit(limit=2)] == [[["ada", "2"]], [[None, "1,3"]]]


def test_two_who_change_the_same_letters_change_each_once(url, store):
    store.put(many(8))
    other = opened(url)
    mine, theirs = store.select(), other.select()
    assert store.change(mine, Change(STATE, "discarded"), by=ADA) == Changed(8)
    assert other.change(theirs, Change(STATE, "discarded"), by="bob@desk") == Changed(0, gone=8)
    assert [entry.who for entry in store.audit()] == [ADA]
    other.close()


def test_what_is_deleted_is_gone_and_what_was_seen_of_its_group_stays_known(store):
    store.put(arrivals([letter(last_failed_at=NOW - age, traceback="boom", first_failed_at=NOW - 9) for age in (2, 1, 3)]))
    assert store.groups()[0].sample == 2
    assert store.change(store.select(Filter.parse("id:orders-1-2")), Change(DELETED), by=ADA) == Changed(1)
    (group,) = store.groups()
    assert (group.count, group.sample, group.last_seen) == (2, 1, NOW - 1)
    assert counts_in(store) == counted_again(store)
    store.change(store.select(), Change(DELETED), by=ADA)
    assert (store.groups(), store.count(), all_of(store)) == ([], 0, [])
    with store._database.reading() as run:
        for table in ("unpoison_letters", "unpoison_letter_contents", "unpoison_tracebacks"):
            assert run(f"select * from {table}", ()).fetchall() == []
        assert run("select sample from unpoison_letter_groups", ()).fetchall() == [(None,)]
    store.put(arrivals([letter(last_failed_at=NOW - 50, traceback="boom")]))
    (group,) = store.groups()
    assert (group.count, group.sample, group.first_seen, group.last_seen) == (1, 4, NOW - 60, NOW - 1)


def test_letters_expire_by_age(store):
    ages = [10, 100, 1_000, 10_000]
    store.put(arrivals([letter(last_failed_at=NOW - age) for age in ages]))
    store.change(store.select(Filter.parse("age>500s")), Change(STATE, "discarded"), by=ADA)
    assert store.expire(Filter.parse("age>50s state:discarded age<5000s"), by="unpoison") == Changed(1)
    assert store.expire(Filter.parse("age>50s"), by="unpoison") == Changed(2)
    assert [each.letter.last_failed_at for each in all_of(store)] == [NOW - 10]
    entry = store.audit(limit=1)[0]
    assert (entry.what, entry.about, entry.letters, entry.after) == ("deleted", "age>50s", 2, "expired")
    assert counts_in(store) == counted_again(store)


def test_a_bulk_change_is_made_in_short_transactions_each_with_its_entry(tmp_path):
    store = opened(f"sqlite:///{tmp_path}/fleet.db", stopwatch=Stopwatch(1.0))
    store.put(many(changes.CHUNK * 3))
    told = []
    store.change(store.select(), Change(STATE, "discarded"), by=ADA, progress=lambda *at: told.append(at))
    assert [entry.letters for entry in store.audit()] == [changes.CHUNK] * 3
    assert [entry.before for entry in store.audit()] == [[["dead", "101-150"]], [["dead", "51-100"]], [["dead", "1-50"]]]
    assert told == [(50, 150), (100, 150), (150, 150)]
    store.close()


def test_a_change_that_fails_halfway_has_entries_for_what_was_changed_and_no_others(tmp_path, monkeypatch):
    store = opened(f"sqlite:///{tmp_path}/fleet.db", stopwatch=Stopwatch(1.0))
    store.put(many(changes.CHUNK * 3))
    note, calls = audit.note, []

    def fails(run, at, **facts):
        calls.append(facts)
        if len(calls) == 2:
            raise StoreUnavailable("The disk is full.")
        note(run, at, **facts)

    monkeypatch.setattr(audit, "note", fails)
    with pytest.raises(StoreUnavailable, match="The disk is full"):
        store.change(store.select(), Change(STATE, "discarded"), by=ADA)
    assert store.count(state="discarded") == changes.CHUNK == sum(entry.letters for entry in store.audit())
    assert counts_in(store) == counted_again(store)
    store.close()


@pytest.mark.parametrize("change", [Change("body", "x"), Change(STATE, "lost"), Change(STATE)])
def test_what_cannot_be_changed_is_refused(store, change):
    with pytest.raises(ValueError, match="It is one of"):
        store.change(store.select(), change, by=ADA)


@pytest.mark.parametrize("seed", range(4))
def test_after_anything_that_happens_the_counts_are_right(store, seed):
    draw = random.Random(seed)
    batch = many(120, seed)
    for _ in range(12):
        start = draw.randrange(100)
        store.put(batch[start : start + draw.randrange(30)])
        where = Filter.parse(
            draw.choice(["source:orders", "error:error1", "error:error2", "age>10h", "version:*", "id:orders-7*"])
        )
        change = draw.choice([Change(STATE, "discarded"), Change(STATE, "dead"), Change(STATE, "replayed"), Change(DELETED)])
        store.change(store.select(where), change, by=ADA)
        assert counts_in(store) == counted_again(store)
        for group in store.groups():
            assert store.get(group.sample).letter.fingerprint == group.fingerprint
        by_state = {state: store.count(state=state) for state in ("dead", "replayed", "discarded")}
        assert sum(by_state.values()) == store.count() == len(all_of(store))


def test_numbers_are_told_as_ranges():
    assert audit.ranges([]) == ""
    assert audit.ranges([7, 1, 3, 2, 9, 10]) == "1-3,7,9-10"


# Groups


def seen_versions(store, *versions, source="orders"):
    """The store sees these versions for the first time, one after the other."""
    with store._database.writing() as run:
        rows = [(source, version, NOW - 1_000 + number) for number, version in enumerate(versions)]
        insert(run, "unpoison_code_versions (source, code_version, first_seen)", rows)


def failing_in(version, number):
    return [WholeLetter(letter=letter(id=f"of-{version}-{number}", code_version=version, fingerprint=GROUP))]


def work(store):
    return store.groups()[0].work


def test_what_is_noted_about_a_group_outlives_its_letters(store, clock):
    store.put(many(1))
    (group,) = store.groups()
    assert group.work.state(NOW) == "open"
    store.change_group(group.fingerprint, note="a null in the feed", links=("https://bugs.example/7",), by=ADA)
    clock.now += 5
    store.change_group(group.fingerprint, owner="ada", snoozed_until=NOW + 60, by="bob@desk")
    store.change(store.select(), Change(DELETED), by=ADA)
    store.put(many(1))
    found = work(store)
    assert (found.note, found.owner, found.links) == ("a null in the feed", "ada", ("https://bugs.example/7",))
    assert [found.state(NOW + later) for later in (0, 59, 60)] == ["snoozed", "snoozed", "open"]
    second, first = [entry for entry in store.audit() if entry.what == "group"]
    assert (first.about, first.who, first.at) == (group.fingerprint, ADA, NOW)
    assert (first.before, first.after[0]) == ([["note", None], ["links", []]], ["note", "a null in the feed"])
    assert (second.before[0], second.after) == (["owner", None], [["owner", "ada"], ["snoozed_until", NOW + 60]])


def test_a_group_that_was_resolved_is_open_again_once_a_newer_version_fails_so(store, clock):
    seen_versions(store, "1.0", "2.0", "3.0")
    store.put(failing_in("1.0", 1))
    group = store.groups()[0].fingerprint
    store.change_group(group, resolved_in="2.0", by=ADA)
    assert (work(store).state(NOW), work(store).resolved_at) == ("resolved", NOW)
    for version in ("1.0", "2.0", "9.9", None):  # older, the same, never seen by the store, without any
        store.put(failing_in(version, 2))
        assert work(store).state(NOW) == "resolved"
    clock.now += 30
    store.put(failing_in("3.0", 3))
    found = work(store)
    assert (found.state(NOW), found.regressed_in, found.regressed_at) == ("regressed", "3.0", NOW + 30)
    entry = store.audit(limit=1)[0]
    assert (entry.who, entry.what, entry.about) == ("unpoison", "regressed", group)
    assert (entry.before, entry.after) == ([["resolved_in", "2.0"]], [["regressed_in", "3.0"]])
    store.put(failing_in("3.0", 4))
    assert len(store.audit()) == 2
    assert store.change_group(group, resolved_in="3.0", by=ADA).state(NOW) == "resolved"


def test_newer_is_what_the_store_saw_later_in_the_same_source(store):
    seen_versions(store, "2.0", "1.0")  # a version that was rolled back, and came after it
    seen_versions(store, "1.0", "2.0", source="parcels")
    store.put(failing_in("2.0", 1))
    group = store.groups()[0].fingerprint
    store.change_group(group, resolved_in="2.0", by=ADA)
    store.put([WholeLetter(letter=letter(id="p", source="parcels", code_version="1.0", fingerprint=GROUP))])
    assert work(store).state(NOW) == "resolved"
    store.put(failing_in("1.0", 2))
    assert work(store).regressed_in == "1.0"


def test_a_letter_that_the_store_has_reopens_nothing(store):
    seen_versions(store, "1.0", "2.0")
    store.put(failing_in("2.0", 1))
    group = store.groups()[0].fingerprint
    store.change_group(group, resolved_in="1.0", by=ADA)
    store.put(failing_in("2.0", 1))
    assert work(store).state(NOW) == "resolved"


def test_a_group_has_no_other_notes(store):
    with pytest.raises(ValueError, match="A group has no 'regressed_in' that can be changed"):
        store.change_group("2-0", regressed_in="1.0", by=ADA)


def test_what_is_not_in_the_state_that_is_meant_any_more_is_neither_moved_nor_deleted(store):
    store.put(many(3))
    everything = store.select()
    store.change(Selection("one", everything.numbers[:1]), Change(STATE, "replayed"), by=ADA)
    assert store.change(everything, Change(DELETED, "purged", only="dead"), by=ADA) == Changed(2, gone=1)
    assert [each.letter.state for each in all_of(store)] == ["replayed"]
    assert store.change(everything, Change(STATE, "dead", only="discarded"), by=ADA) == Changed(0, gone=3)
