"""Dead letters that somebody moves back into their topic with Kafka's own tools start anew; those without headers are new."""

import subprocess

import pytest
from confluent_kafka import Producer

from servers.kafka import TOOLS
from servers.maven import java
from unpoison.brokers.kafka import letters
from unpoison.brokers.kafka.url import address
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.running import Journal, drained


class Shop:
    """Its handler fails as long as `error` is set."""

    def __init__(self, lab):
        self.lab, self.error, self.seen = lab, ConnectionError("down"), []

    def handle(self, body: bytes, delivery: Delivery) -> None:
        self.seen.append((body, delivery.attempt, delivery.counters.replays, dict(delivery.headers)))
        if self.error is not None:
            raise self.error

    def drain(self):
        self.seen.clear()
        app = given.consumer(
            self.lab.app(), "orders", self.handle, max_attempts=2, backoff=Backoff.immediate(), isolation="thread"
        )
        drained(app)
        return self.seen

    def dead(self):
        return list(self.lab.dlq("orders").letters())


def produce(lab, value, key=None, headers=()):
    where = address(lab.url)
    producer = Producer(where.options)
    producer.produce(f"{where.prefix}orders", value, key, headers=list(headers))
    assert producer.flush(10) == 0


def move_back(lab, count=1):
    """The first letters of the DLQ, as a tool copies them that knows nothing of us."""
    reader = lab.broker("orders").reader
    for record in reader.read({(f"{address(lab.url).prefix}orders.dlq", 0): (0, count)}):
        produce(lab, record.value(), record.key(), record.headers())


def test_a_letter_that_was_moved_back_has_all_its_attempts_and_its_history(lab):
    shop = Shop(lab)
    produce(lab, b"1", b"k", [("tenant", b"a")])
    shop.drain()
    move_back(lab)
    with Journal() as journal:
        assert shop.drain() == [(b"1", 1, 1, {"tenant": "a"}), (b"1", 2, 1, {"tenant": "a"})]
    assert len(journal.of("moved-back")) == 1
    first, second = shop.dead()
    assert (first.replays, second.replays, second.attempts) == (0, 1, 2)
    assert [past.attempt for past in second.history] == [1, 2, 1, 2]
    assert first.message.id == second.message.id
    shop.error = None
    move_back(lab)
    assert shop.drain() == [(b"1", 1, 1, {"tenant": "a"})]


def test_a_letter_that_was_moved_back_twice_is_two_messages(lab):
    shop = Shop(lab)
    produce(lab, b"1")
    shop.drain()
    move_back(lab)
    move_back(lab)
    assert len(shop.drain()) == 4
    assert [letter.replays for letter in shop.dead()] == [0, 1, 1]


def test_without_its_headers_it_is_a_new_message(lab):
    shop = Shop(lab)
    produce(lab, b"1")
    shop.drain()
    produce(lab, shop.dead()[0].body)
    assert shop.drain() == [(b"1", 1, 0, {}), (b"1", 2, 0, {})]


def test_counters_that_somebody_else_wrote_kill_nothing_and_are_left_to_the_handler(lab):
    shop = Shop(lab)
    produce(lab, b"1", headers=[("x-delivery-attempts", b"99"), ("x-unpoison-counters", b'{"attempts":99}')])
    assert shop.drain() == [(b"1", 1, 0, {"x-delivery-attempts": "99"}), (b"1", 2, 0, {"x-delivery-attempts": "99"})]
    (letter,) = shop.dead()
    assert dict(letter.message.headers) == {"x-delivery-attempts": "99"}
    shop.error = None
    move_back(lab)
    assert shop.drain() == [(b"1", 1, 1, {"x-delivery-attempts": "99"})]


def test_a_letter_without_its_body_is_refused_and_not_run_empty(lab, monkeypatch):
    shop = Shop(lab)
    produce(lab, b"1")
    written = letters.letter_record
    monkeypatch.setattr(letters, "letter_record", lambda *given: written(given[0], given[1], given[2], letters.REFERRING))
    shop.drain()
    monkeypatch.undo()
    move_back(lab)
    assert shop.drain() == []
    referring, refused = shop.dead()
    assert referring.body == b"1"
    assert "unpoison dlq replay" in refused.error


@pytest.mark.long
def test_kafkas_own_console_tools_can_move_a_letter_back(lab, kafka):
    shop = Shop(lab)
    produce(lab, b"1", b"k", [("tenant", b"a, b: c")])
    shop.drain()
    names = lab.broker("orders").connection.names("orders")
    console(
        kafka, "ConsoleProducer", names.topic, "parse", given_text=console(kafka, "consumer.ConsoleConsumer", names.dlq, "print")
    )
    assert shop.drain() == [(b"1", 1, 1, {"tenant": "a, b: c"}), (b"1", 2, 1, {"tenant": "a, b: c"})]
    assert [past.attempt for past in shop.dead()[1].history] == [1, 2, 1, 2]


def console(server, tool, topic, verb, given_text=None):
    """The commands of docs/kafka.md. A separator that no header contains: JSON has it escaped."""
    TOOLS.get()
    kind = "formatter" if verb == "print" else "reader"
    properties = {f"{verb}.headers": "true", f"{verb}.key": "true", "headers.separator": "\x1e"}
    options = [each for name, value in properties.items() for each in (f"--{kind}-property", f"{name}={value}")]
    options += ["--from-beginning", "--max-messages", "1"] if verb == "print" else []
    command = [java(), "-cp", TOOLS.find() or "", f"org.apache.kafka.tools.{tool}", "--bootstrap-server", server.address]
    ended = subprocess.run([*command, "--topic", topic, *options], input=given_text, capture_output=True, timeout=60, check=True)
    return ended.stdout
