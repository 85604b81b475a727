"""What one reading of a DLQ knows, and what it costs to know it."""

import errno
import tracemalloc
from types import SimpleNamespace

import pytest

from unpoison.brokers.rabbitmq import letters, properties
from unpoison.brokers.rabbitmq.copies import letter_copy
from unpoison.brokers.rabbitmq.envelope import Receipt
from unpoison.brokers.rabbitmq.wire import Arrived
from unpoison.errors import BrokerUnavailable
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Dead
from unpoison.port.copying.dlq_index import AT_ONCE, IN_MEMORY, MOST_BYTES, Entry, Index, portions
from unpoison.testing import given


def index(*, in_order=True):
    return Index(SimpleNamespace(in_order=in_order, history="history"))


def entry(id_, *, identity=None, place="dlq", state="dead"):
    return Entry(id_, f"message of {id_}", state, place, id_, identity)


def ids(found, state="dead"):
    return [each.id for each in found.entries(state)]


def test_letters_that_do_not_fit_into_memory_wait_elsewhere():
    found, body = index(), bytes(64 * 1024)
    tracemalloc.start()
    for number in range(2 * IN_MEMORY // len(body)):
        found.keep(entry(f"{number:05}"), body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    found.add_waiting()
    assert peak < 1.5 * IN_MEMORY  # all of them are twice that
    assert found.data(found.waiting["00700"]) == body
    found.close()


def test_a_disk_without_room_is_told_with_the_way_out(monkeypatch):
    def full(data):
        raise OSError(errno.ENOSPC, "No space left on device")

    found = index()
    monkeypatch.setattr(found, "_file", SimpleNamespace(write=full))
    with pytest.raises(BrokerUnavailable, match=r"No space left.*put back.*TMPDIR"):
        found.keep(entry("1"), b"x")


def test_copies_that_a_crash_left_are_one_letter_under_the_first_id():
    found = index(in_order=False)
    for each in (entry("2", identity="a"), entry("3", identity="b"), entry("1", identity="a")):
        found.keep(each, b"")
    assert found.add_waiting() == []
    assert ids(found) == ["1", "3"]
    assert [each.handle for each in found.copies["1"]] == ["2"]


def test_a_second_copy_that_a_crash_left_is_let_go_at_the_next_look():
    found = index()
    for each in (entry("1", identity="a"), entry("2", identity="b"), entry("3", identity="a")):
        found.keep(each, b"")
    assert [each.handle for each in found.add_waiting()] == ["3"]
    assert ids(found) == ["1", "2"]


def test_equal_letters_without_a_name_are_told_apart():
    found = index()
    for _ in range(3):
        found.keep(entry("1"), b"same")
    found.add_waiting()
    assert ids(found) == ["1", "1-2", "1-3"]


def test_what_was_dealt_with_and_is_still_in_the_dlq_is_no_letter_that_waits():
    found = index()
    found.keep(entry("2", place="history", state="replayed"), b"")
    found.add_past()
    for id_ in "123":
        found.keep(entry(id_, identity=id_), b"")
    assert [each.id for each in found.add_waiting()] == ["2"]
    assert (ids(found), ids(found, None)) == (["1", "3"], ["1", "2", "3"])


def test_a_letter_that_is_equal_to_one_that_was_dealt_with_still_waits():
    found = index()
    found.keep(entry("1", place="history", state="replayed"), b"same")
    found.add_past()
    found.keep(entry("1"), b"same")
    assert found.add_waiting() == []
    assert (ids(found), ids(found, "replayed")) == (["1-2"], ["1"])


def test_pages_go_on_behind_a_letter_that_was_dealt_with_meanwhile():
    found = index()
    for id_ in "1234":
        found.keep(entry(id_), b"")
    found.add_waiting()
    found.changed(["1", "2"], "replayed")
    assert [each.id for each in found.entries("dead", after="2")] == ["3", "4"]


FOREIGN = [
    Arrived(1, False, properties.write("theirs", []), b"body"),
    Arrived(1, True, properties.write(None, []), b"body"),
    Arrived(
        1,
        True,
        properties.write(
            "x", [properties.header(b"x-unpoison-stamp", "s"), properties.header(b"x-unpoison-counters", '{"replays":2}')]
        ),
        b"",
    ),
    Arrived(1, False, properties.write("x", [properties.header(b"x-unpoison-state", "replayed")]), b"body"),
    Arrived(1, False, properties.write("x", [properties.header(b"x-unpoison-letter-id", "")]), b"body"),
    Arrived(
        1,
        False,
        properties.write("x", [properties.header(b"x-unpoison-letter-id", 7), properties.header(b"x-unpoison-id", "y")]),
        b"b",
    ),
]


def own():
    delivery = Delivery(Receipt(None, 0, properties.write("mine", [])), "orders", "mine", b"1", counters=Counters(replays=1))
    copy = letter_copy(Dead(delivery, given.letter_of(delivery)), "orders-1")
    return Arrived(1, False, copy.properties, copy.body)


@pytest.mark.parametrize("arrived", [own(), *FOREIGN])
@pytest.mark.parametrize("states", [("dead",), ("replayed", "discarded")])
def test_what_a_letter_of_rabbitmq_is_found_by_is_what_it_says_when_it_is_read(arrived, states):
    told, letter = letters.brief("orders", arrived, states), letters.read("orders", arrived, states).letter
    assert (told.id, told.message_id, told.state) == (letter.id, letter.message.id, letter.state)
    assert told.id


def test_a_letter_that_claims_an_empty_id_hides_no_other():
    found = index()
    for id_ in ("1", "", "2"):
        found.keep(entry(id_), b"")
    found.add_waiting()
    assert sorted(ids(found)) == ["", "1", "2"]


def test_letters_are_moved_in_portions_that_fit_into_memory():
    small = [Entry(str(n), "m", "dead", "q", n, size=2_048) for n in range(AT_ONCE + 1)]
    assert [len(portion) for portion in portions(small)] == [AT_ONCE, 1]
    large = [Entry(str(n), "m", "dead", "q", n, size=MOST_BYTES // 3 + 1) for n in range(5)]
    assert [len(portion) for portion in portions(large)] == [2, 2, 1]
    huge = [Entry(str(n), "m", "dead", "q", n, size=2 * MOST_BYTES) for n in range(2)]
    assert [len(portion) for portion in portions(huge)] == [1, 1]
    assert list(portions([])) == []


def taken(found, *ids):
    for each in ids:
        found.keep(entry(each), b"")
    found.add_waiting()


def page(found, after="", limit=2):
    return [each.id for each in found.page(after, limit)]


def test_pages_go_on_behind_a_letter_whatever_became_of_it():
    found = index()
    taken(found, "3", "1", "2", "5", "4")
    assert (page(found), page(found, "1"), page(found, "5"), page(found, "4")) == (["3", "1"], ["2", "5"], ["4"], [])
    for each in ("3", "2"):
        found.waiting[each].state = ""
    assert (page(found), page(found, "2"), page(found, "3", 1), page(found, "1")) == (["1", "5"], ["5", "4"], ["1"], ["5", "4"])
    assert page(found, "unknown") == ["1", "5"]
    taken(found, "6")
    assert page(found, "4") == ["6"]


def test_pages_go_on_behind_a_letter_that_was_dealt_with_before():
    found = index()
    found.keep(entry("2", place="history", state="replayed"), b"")
    found.add_past()
    taken(found, "1", "3")
    assert page(found, "2") == ["3"]


def test_going_through_a_dlq_page_by_page_looks_at_each_letter_a_few_times(monkeypatch):
    """As one does who moves them elsewhere: what was moved is not gone through again."""
    found, asked = index(), 0

    class Counted(list):
        def __getitem__(self, at):
            nonlocal asked
            asked += 1
            return super().__getitem__(at)

    taken(found, *(f"{number:05}" for number in range(10_000)))
    monkeypatch.setattr(found, "_line", Counted(found._line))
    moved = 0
    while letters := found.page("", 100):
        moved += len(letters)
        for each in letters:
            each.state = ""
    assert (moved, asked < 50_000) == (10_000, True)
