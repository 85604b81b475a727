"""A letter that has left its DLQ for a store can be sent to where it came from, as it was."""

import base64

import msgspec
import pytest

from unpoison.app import App
from unpoison.errors import Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.dead_letter import ENCRYPTED
from unpoison.model.message import Delivery
from unpoison.model.verdict import ErrorClassification
from unpoison.port.broker import STORED, Capability, Dead, Settlement, one_look
from unpoison.store.letters.choice import letters_of
from unpoison.testing import given
from unpoison.testing.contract.pausing import taken
from unpoison.testing.lab import Lab, Trait, trait
from unpoison.testing.processes import Child, Gate
from unpoison.testing.running import drained


def test_a_whole_letter_is_the_letter_that_browsing_shows(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1", b"\xff\x00", b""])
    letters = lab.letters("orders")
    with one_look(letters):
        assert [each.letter for each in letters.whole()] == list(letters.browse())
    assert letters.count() == 3


@trait(Trait.ORDERED)
def test_whole_letters_come_in_pages_that_fit_into_memory(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"a", b"b" * 5_000, b"c" * 5_000, b"d", b"e"])
    letters = lab.letters("orders")
    with one_look(letters):
        first = letters.whole(limit=2)
        assert [each.letter.body[:1] for each in first] == [b"a", b"b"]
        second = letters.whole(after=first[-1].letter.id, most_bytes=100)
        assert [each.letter.body[:1] for each in second] == [b"c"]
        third = letters.whole(after=second[-1].letter.id)
        assert [each.letter.body for each in third] == [b"d", b"e"]
        assert letters.whole(after=third[-1].letter.id) == []


def test_a_message_starts_again_as_it_was_after_its_letter_has_left_the_dlq(lab: Lab) -> None:
    received: list[Delivery] = []

    def handle(payload: bytes, delivery: Delivery) -> None:
        received.append(delivery)
        if len(received) < 3:
            raise ConnectionError("not now")

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    body, headers = bytes(range(256)), {"trace": "ü\n", "empty": "", "X": "1", "x": "2"}
    app.publish("orders", body, key="customer-7", headers=headers, id="order-1")
    drained(app)
    letters = lab.letters("orders")
    (stored,) = given.moved_into_a_store(lab.folder, letters)
    assert (letters.count(), lab.broker("orders").depth("orders").empty) == (0, True)
    assert letters.send_back([stored]) == STORED
    drained(app)
    assert [(each.body, each.key, each.id, dict(each.headers)) for each in received] == [
        (body, "customer-7", "order-1", headers)
    ] * 3
    assert received[-1].attempt == 1
    assert letters.count() == 0


def test_a_message_that_was_sent_back_and_fails_again_is_a_new_letter(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1"])
    letters, ids = lab.letters("orders"), []
    for replays in range(3):
        (stored,) = given.moved_into_a_store(lab.folder, letters)
        assert stored.letter.replays == replays
        ids.append(stored.letter.id)
        letters.send_back([stored])
        drained(_failing(lab))
    assert len(set(ids)) == 3


def test_many_are_sent_back_at_once_each_once(lab: Lab) -> None:
    bodies = [str(n).encode() for n in range(250)]
    given.dead_letters(lab, "orders", bodies)
    letters = lab.letters("orders")
    assert letters.send_back(given.moved_into_a_store(lab.folder, letters)) == STORED
    assert letters.send_back([]) == STORED
    received: list[bytes] = []

    def handle(payload: bytes) -> None:
        received.append(payload)

    drained(given.consumer(lab.app(), "orders", handle))
    assert sorted(received) == sorted(bodies)


def test_one_that_took_a_process_down_comes_back_to_run_alone(lab: Lab) -> None:
    broker = lab.broker("orders")
    given.publish(broker, given.messages("orders", 1))
    (delivery,) = taken(broker, 1)
    letter = msgspec.structs.replace(given.letter_of(delivery), classification=str(ErrorClassification.CRASH))
    broker.settle(Settlement(dead=[Dead(delivery, letter)]))
    letters = lab.letters("orders")
    letters.send_back(given.moved_into_a_store(lab.folder, letters))
    suspect = given.suspect(broker, "orders")
    assert (suspect.body, suspect.counters.replays) == (delivery.body, 1)


def test_a_letter_that_cannot_be_read_is_taken_and_comes_back_too(lab: Lab) -> None:
    app = _failing(lab)
    app.publish("orders", b"unreadable-marker", key="customer-7")
    drained(app)
    letters = lab.letters("orders")
    with lab.unreadable(b"unreadable-marker"):
        (stored,) = given.moved_into_a_store(lab.folder, letters)
    assert stored.letter.body.endswith(b"unreadable-marker")
    letters.send_back([stored])
    received: list[bytes] = []

    def handle(payload: bytes) -> None:
        received.append(payload)

    drained(given.consumer(lab.app(), "orders", handle))
    assert received == [b"unreadable-marker"]


@pytest.mark.parametrize("body", [b"", b"x" * 200_000], ids=["nothing", "large"])
def test_a_body_of_any_size_comes_back(lab: Lab, body: bytes) -> None:
    given.dead_letters(lab, "orders", [body])
    letters = lab.letters("orders")
    letters.send_back(given.moved_into_a_store(lab.folder, letters))
    (delivery,) = taken(lab.broker("orders"), 1)
    assert delivery.body == body


def test_two_collectors_at_once_lose_no_letter_and_keep_none_twice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.needs(Capability.SHARED)
    monkeypatch.setattr("unpoison.store.letters.collector.TURN", 0.02)  # else one of them would do it all
    bodies = [str(n).encode() for n in range(330)]
    given.dead_letters(lab, "orders", bodies)
    store = f"sqlite:///{lab.folder}/letters.db"
    start = Gate("start")

    def collect() -> None:
        letters = letters_of(lab.url, store, "orders")
        start.wait()
        letters.freeze()

    children = [Child(collect) for _ in range(2)]
    start.open()
    assert [child.wait() for child in children] == [0, 0]
    letters = letters_of(lab.url, store, "orders")
    assert sorted(letter.body for letter in letters.browse(limit=1_000)) == sorted(bodies)
    assert (letters.count(), lab.letters("orders").count()) == (330, 0)
    letters.broker.close()


def test_a_letter_that_is_restored_after_its_replay_is_sent_a_second_time(lab: Lab) -> None:
    given.dead_letters(lab, "orders", [b"1"])
    letters = letters_of(lab.url, f"sqlite:///{lab.folder}/letters.db", "orders")
    (letter,) = letters.browse()
    received: list[bytes] = []

    def handle(payload: bytes) -> None:
        received.append(payload)

    app = given.consumer(lab.app(), "orders", handle)
    assert letters.replay([letter.id]) == [letter.id]
    drained(app)
    assert letters.remove([letter.id], state="replayed", keep_as="dead") == [letter.id]
    assert letters.replay([letter.id]) == [letter.id]
    drained(app)
    letters.broker.close()
    assert received == [b"1", b"1"]


def test_a_message_whose_letter_was_redacted_starts_again_as_it_was(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPOISON_KEY", base64.b64encode(bytes(32)).decode())
    received: list[Delivery] = []

    def handle(payload: bytes, delivery: Delivery) -> None:
        received.append(delivery)
        if len(received) == 1:
            raise Permanent(f"no {payload!r} for {delivery.key}")

    app = given.consumer(lab.app(), "orders", handle)
    secret, headers = "a secret of customer seven", {"trace": "secret-trace", "x": "1"}
    app.publish("orders", {"name": secret}, key="customer-7", headers=headers, id="order-1")
    drained(app)
    rules = ("body.name", "key", "header.trace")
    letters = letters_of(lab.url, f"sqlite:///{lab.folder}/letters.db", "orders", redact=rules)
    (letter,) = letters.browse()
    assert letter.redaction is not None
    assert letter.redaction.original == ENCRYPTED
    stored = b"".join(file.read_bytes() for file in lab.folder.glob("letters.db*"))
    assert not [clear for clear in (secret, "customer-7", "secret-trace") if clear.encode() in stored]
    assert letters.replay([letter.id]) == [letter.id]
    letters.broker.close()
    drained(app)
    told = [(each.body, each.key, each.id, dict(each.headers)) for each in received]
    assert len(told) == 2
    assert told[0] == told[1]


def _failing(lab: Lab) -> App:
    def fail(payload: bytes) -> None:
        raise Permanent("no")

    return given.consumer(lab.app(), "orders", fail)
