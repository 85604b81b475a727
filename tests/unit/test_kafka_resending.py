"""Letters that come from a store are sent in portions, and nothing that stands in the store can stop the others."""

from types import SimpleNamespace

import msgspec
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from unpoison.brokers.kafka import deadletters, resending
from unpoison.brokers.kafka.deadletters import KafkaDeadLetters
from unpoison.brokers.kafka.envelope import NewRecord
from unpoison.brokers.kafka.names import PARTITIONS, Names
from unpoison.brokers.kafka.resending import MessageAgain
from unpoison.errors import Refusal
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.message import Message
from unpoison.port.broker import STORED, Refused

NAMES = Names("orders", "shop")
TIMED_OUT, TOO_LARGE = KafkaError._MSG_TIMED_OUT, KafkaError.MSG_SIZE_TOO_LARGE


class Servers:
    """They answer as told, and know what was sent together."""

    def __init__(self, answers=()):
        self.sent, self.answers, self.name, self.queries = [], dict(answers), "here", self

    def topics(self):
        return {name: SimpleNamespace(partitions=range(PARTITIONS)) for name in (NAMES.topic, NAMES.retry)}

    def names(self, source):
        return NAMES

    def store(self, copies):
        self.sent.append([copy.value for copy in copies])
        return {n: KafkaError(self.answers[copy.value]) for n, copy in enumerate(copies) if copy.value in self.answers}


def whole(body, native=None):
    message = Message("m", "orders", body)
    about = dict.fromkeys(("classification", "rule", "reason", "error_type", "error"), "")
    letter = DeadLetter(id="orders-7", message=message, attempts=1, first_failed_at=0.0, last_failed_at=0.0, **about)
    native = msgspec.msgpack.encode(MessageAgain(b"\xff", (("a", b"\xff"),))) if native is None else native
    return WholeLetter(letter=letter, native=native)


def send_back(servers, letters):
    return KafkaDeadLetters(SimpleNamespace(connection=servers), "orders").send_back(letters)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.binary() | st.text(), st.lists).map(msgspec.msgpack.encode))
def test_whatever_is_kept_of_a_letter_is_sent_or_refused(native):
    made = resending.sent_back(NAMES, whole(b"1", native), lambda _: 3)
    assert isinstance(made, Refused | NewRecord)


@given(
    st.builds(
        MessageAgain,
        key=st.none() | st.binary(),
        headers=st.lists(st.tuples(st.text(), st.none() | st.binary())).map(tuple),
        value=st.none() | st.binary() | st.just(msgspec.UNSET),
        group=st.text(),
        origin=st.none() | st.text(),
        partition=st.none() | st.integers(-(2**63), 2**64 - 1),
        deleted_at=st.text(),
    )
)
def test_nothing_is_sent_to_a_topic_or_a_partition_that_does_not_exist(message):
    counts = {NAMES.retry: PARTITIONS, NAMES.topic: 2}
    made = resending.sent_back(NAMES, whole(b"1", msgspec.msgpack.encode(message)), lambda topic: counts.get(topic, 0))
    if isinstance(made, NewRecord):
        assert 0 <= made.partition < counts[made.topic]
    else:
        assert made.refusal in (Refusal.UNFIT, Refusal.NO_SUCH_SOURCE)


def test_many_are_sent_in_portions_that_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(deadletters, "MAX_BYTES", 10)
    servers = Servers()
    assert send_back(servers, [whole(body) for body in (b"1" * 6, b"2" * 6, b"3" * 30, b"4", b"5")]) == STORED
    assert servers.sent == [[b"1" * 6, b"2" * 6], [b"3" * 30], [b"4", b"5"]]


def test_what_was_refused_and_what_may_have_arrived_is_told_by_position(monkeypatch):
    monkeypatch.setattr(deadletters, "MAX_BYTES", 3)
    servers = Servers({b"2": TOO_LARGE, b"4": TIMED_OUT})
    outcome = send_back(servers, [whole(b"0", b"?"), *(whole(body) for body in (b"1", b"2", b"3", b"4", b"5", b"6"))])
    assert {number: each.refusal for number, each in outcome.refused.items()} == {0: Refusal.UNFIT, 2: Refusal.TOO_LARGE}
    assert list(outcome.unknown) == [4]
    assert servers.sent == [[b"1", b"2", b"3"], [b"4", b"5", b"6"]]


@pytest.mark.parametrize("answer", [TIMED_OUT, TOO_LARGE], ids=["silence", "a refusal"])
def test_after_silence_the_rest_is_not_tried_and_after_a_refusal_it_is(monkeypatch, answer):
    monkeypatch.setattr(deadletters, "MAX_BYTES", 1)
    servers = Servers({b"1": answer})
    outcome = send_back(servers, [whole(body) for body in (b"1", b"2", b"3")])
    if answer == TOO_LARGE:
        assert (servers.sent, list(outcome.refused), outcome.unknown) == ([[b"1"], [b"2"], [b"3"]], [0], {})
    else:
        assert (servers.sent, list(outcome.unknown)) == ([[b"1"]], [0])
        assert {number: each.refusal for number, each in outcome.refused.items()} == {1: Refusal.NOT_SENT, 2: Refusal.NOT_SENT}
