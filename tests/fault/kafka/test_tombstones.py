"""Records whose value is null, as a compacted topic has them where a key was deleted."""

from pathlib import Path

from confluent_kafka import Producer

from tests.docs.pages import blocks
from unpoison import Delivery
from unpoison.errors import Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.running import drained


def send(lab, *records, source="orders"):
    broker = lab.broker(source)
    producer = Producer(broker.connection.address.options)
    for key, value, *headers in records:
        producer.produce(broker.connection.names(source).topic, value, key=key, headers=headers)
    assert producer.flush(30) == 0


def test_null_nothing_and_the_json_null_are_three_things(lab):
    send(lab, ("null", None), ("nothing", b""), ("json", b"null"), (None, None, ("x-unpoison-id", b"ours")))
    seen = []

    def handle(body: bytes | None, delivery: Delivery) -> None:
        seen.append((delivery.key, body, delivery.is_tombstone))

    drained(given.consumer(lab.app(), "orders", handle))
    assert seen == [("null", None, True), ("nothing", b"", False), ("json", b"null", False), (None, None, True)]


def test_a_tombstone_stays_one_through_retry_dead_letter_and_replay(lab):
    send(lab, ("customer-7", None, ("trace", b"1"), ("trace", None)), ("customer-8", b""))
    seen = []

    def fail(order: bytes | None, delivery: Delivery) -> None:
        seen.append((delivery.key, delivery.attempt, order, delivery.is_tombstone))
        raise ConnectionError if delivery.attempt == 1 else Permanent("as asked")

    app = given.consumer(lab.app(), "orders", fail, backoff=Backoff.immediate())
    drained(app)
    app.close()
    retried = [("customer-7", attempt, None, True) for attempt in (1, 2)]
    assert sorted(seen) == sorted([*retried, ("customer-8", 1, b"", False), ("customer-8", 2, b"", False)])
    letters = {letter.message.key: letter for letter in lab.dlq("orders").peek()}
    assert {key: (letter.is_tombstone, letter.as_json()["body"]) for key, letter in letters.items()} == {
        "customer-7": (True, None),
        "customer-8": (False, ""),
    }
    dead = [record for record in records_of(lab, "dlq") if record.key() in (b"customer-7", b"customer-8")]
    assert {record.key(): record.value() for record in dead} == {b"customer-7": None, b"customer-8": b""}
    assert lab.dlq("orders").replay_all().count == 2
    again = []

    def handle(order: bytes | None, delivery: Delivery) -> None:
        again.append((delivery.key, order, delivery.is_tombstone, delivery.native.headers))

    drained(given.consumer(lab.app(), "orders", handle))
    assert sorted(again) == [
        ("customer-7", None, True, (("trace", b"1"), ("trace", None))),
        ("customer-8", b"", False, ()),
    ]


def records_of(lab, kind):
    broker = lab.broker("orders")
    place = (getattr(broker.connection.names("orders"), kind), 0)
    return list(broker.reader.read({place: (0, broker.connection.queries.ends([place])[place])}))


def test_a_suspect_that_is_a_tombstone_is_still_one(lab):
    send(lab, ("customer-7", None))
    broker = lab.broker("orders")
    (delivery,) = broker.fetch("orders", 10)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(vanished=2, alone=True))]))
    suspect = broker.take_suspect("orders", "here")
    assert (suspect.is_tombstone, suspect.body, suspect.key) == (True, b"", "customer-7")


def test_a_handler_that_takes_no_null_gets_the_others_and_the_letter_says_what_to_do(lab):
    send(lab, ("a", b'{"id":1}'), ("b", None), ("c", b'{"id":3}'))
    seen = []

    def ship(order: dict) -> None:
        seen.append(order["id"])

    drained(given.consumer(lab.app(), "orders", ship))
    assert seen == [1, 3]
    (letter,) = lab.dlq("orders").peek()
    assert (letter.rule, letter.message.key, letter.is_tombstone) == ("invalid: tombstone", "b", True)
    assert "its value is null" in letter.error
    assert "tombstones='skip'" in letter.error


def test_tombstones_are_skipped_where_the_consumer_says_so(lab):
    send(lab, *(("a", b'{"id":1}'), ("b", None), ("c", b'{"id":3}'), ("d", None)))
    seen = []

    def ship(order: dict) -> None:
        seen.append(order["id"])

    tally = drained(given.consumer(lab.app(), "orders", ship, tombstones="skip"))["orders"]
    assert (seen, tally.done, tally.dead) == ([1, 3], 4, 0)
    assert lab.broker("orders").depth("orders").empty


def test_the_example_of_the_page_keeps_what_is_there_and_forgets_what_was_deleted(lab):
    page = Path(__file__).parents[3] / "docs" / "native.md"
    (example,) = [block.text for block in blocks(page.read_text()) if block.file == "customers.py"]
    here = {}
    exec(example.replace("kafka://kafka.example.com:9092?group=billing", lab.url), here)
    send(lab, ("ada", b'{"name":"Ada"}'), ("bob", b'{"name":"Bob"}'), ("ada", None), source="customers")
    try:
        drained(here["app"])
    finally:
        here["app"].close()
    assert here["customers"] == {"bob": {"name": "Bob"}}
