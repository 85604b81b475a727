"""Somebody stops using unpoison on Kafka: what waits is put back, nothing is lost, and it is said when nothing is left."""

import json

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException

from tests.contract.kafka_lab import KafkaLab
from tests.e2e.command_line import unpoison
from unpoison.brokers import leftovers_for, move_back
from unpoison.brokers.kafka import envelope, leaving
from unpoison.brokers.kafka.envelope import NewRecord
from unpoison.brokers.kafka.names import REPLAYS
from unpoison.brokers.kafka.url import address
from unpoison.brokers.kafka.waiting import held_record
from unpoison.cli.main import cli
from unpoison.errors import BrokerUnavailable, CapabilityError
from unpoison.model.message import Counters, Outgoing
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until


@pytest.fixture
def names(lab):
    """Of six messages one is done, one dead, one waits for an hour, one is to be started again at once and one alone; the last
    was not started. A seventh was published for tomorrow."""
    broker = lab.broker("orders")
    sent = [Outgoing(f"id-{number}", "orders", str(number).encode(), "k", {"tenant": "a"}) for number in range(6)]
    broker.publish([*sent, *given.messages("orders", 1, first=6, delay=86_400)])
    held = sorted(broker.fetch("orders", 5), key=lambda each: each.body)
    kept = [
        Kept(held[2], Counters(attempts=1), 3600.0),
        Kept(held[3], Counters(attempts=1)),
        Kept(held[4], Counters(vanished=1, alone=True)),
    ]
    broker.settle(Settlement(gone=[held[0]], kept=kept, dead=[Dead(held[1], given.letter_of(held[1]))]))
    names = broker.connection.names("orders")
    broker.close()
    return names


def read_plainly(lab, names, count):
    """What another consumer of the group gets: value, key and headers."""
    settings = {"group.id": names.group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    client, found = Consumer(address(lab.url).options | settings), []
    client.subscribe([names.topic])
    wait_until(lambda: found.extend(client.consume(100, 0.2)) or len(found) >= count, lambda: f"{len(found)} came")
    client.close()
    return [(record.value(), record.key(), record.headers()) for record in found]


def called(*options):
    return CliRunner().invoke(cli, ["leave", *options], prog_name="unpoison")


def leave(lab, *options):
    ended = called(lab.url, "--json", *options)
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def test_what_waits_is_put_back_as_it_was_sent_and_what_is_left_is_told(lab, names):
    (before,) = leftovers_for(lab.url)
    assert (before.waiting, before.later, before.suspects, before.dead) == (4, 2, 1, 1)
    refused = called(lab.url)
    assert (refused.exit_code, leftovers_for(lab.url)) == (1, [before])
    assert (
        "Move 4 messages of source 'orders' of group 'unpoison' back to 'orders', 2 of them before their delay is over"
        in refused.stderr
    )
    (told,) = leave(lab, "--yes")["sources"]
    assert (told["moved"], told["waiting"], told["dead"]) == (4, 0, 1)
    assert told["topics"] == [names.retry, names.dlq, names.states]
    assert told["groups"] == [names.retry_group]
    found = read_plainly(lab, names, 5)
    assert sorted(value for value, _, _ in found) == [b"2", b"3", b"4", b"5", b"6"]
    for value, key, headers in found:
        own = [("tenant", b"a")] if value != b"6" else []
        assert (key, [header for header in headers if header[0] != "x-unpoison-id"]) == (b"k" if own else None, own)
        assert [name for name, _ in headers].count("x-unpoison-id") == 1
    (again,) = leave(lab)["sources"]
    assert again["moved"] == 0


def test_what_has_another_prefix_is_not_meant(lab, names, kafka, tmp_path):
    with KafkaLab(kafka, tmp_path) as others:
        others.broker("orders")
        (left,) = leftovers_for(lab.url)
    assert (left.source, left.waiting, left.groups) == ("orders", 4, (names.retry_group,))


def test_when_nothing_is_left_that_is_said(lab, names):
    ended = called(lab.url, "--yes")
    assert "In source 'orders' of group 'unpoison': 4 messages moved back, none waiting." in ended.stdout
    assert "1 dead letter would be deleted" in ended.stdout
    commands = [line.split() for line in ended.stdout.splitlines() if "--delete" in line]
    admin = lab.broker().connection.queries.admin
    for answer in admin.delete_topics([line[-1] for line in commands if line[-2] == "--topic"]).values():
        answer.result(10)
    for answer in admin.delete_consumer_groups([line[-1] for line in commands if line[-2] == "--group"]).values():
        answer.result(10)
    wait_until(lambda: names.retry not in admin.list_topics(timeout=10).topics, lambda: "Kafka still lists it")
    ended = called(lab.url, "--source", "orders")
    assert (ended.exit_code, "  Nothing is left." in ended.stdout) == (0, True)
    assert leave(lab, "--source", "orders")["is_left"] is False
    assert leave(lab)["sources"] == []


def test_nothing_is_moved_while_a_consumer_runs(lab, names):
    broker = lab.broker("orders", ring=lambda: None)
    wait_until(lambda: broker.fetch("orders", 1), lambda: "Nothing came")
    (left,) = leftovers_for(lab.url)
    with pytest.raises(BrokerUnavailable, match=r"still has .* that consume with unpoison"):
        move_back(lab.url, left, 0.0)
    broker.close()
    assert move_back(lab.url, left, 30.0) == 4


def test_one_that_ends_before_kafka_has_noted_what_it_moved_moves_it_again_and_loses_nothing(lab, names, monkeypatch):
    (left,) = leftovers_for(lab.url)

    def refuse(*_, **__):
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))

    with monkeypatch.context() as patched:
        patched.setattr(leaving, "Consumer", lambda settings: type("Refusing", (), {"commit": refuse, "close": lambda _: None})())
        with pytest.raises(BrokerUnavailable, match="may be moved twice"):
            move_back(lab.url, left, 30.0)
    assert move_back(lab.url, left, 30.0) == 4
    assert {value for value, _, _ in read_plainly(lab, names, 6)} == {b"2", b"3", b"4", b"5", b"6"}


def test_what_its_holder_has_settled_and_what_an_operator_was_too_late_to_send_is_not_put_back(lab, names):
    broker = lab.broker("orders")
    (delivery,) = [each for each in broker.fetch("orders", 10) if each.body == b"5"]
    part, record = delivery.receipt.partition, delivery.receipt.record
    ref, settled = held_record(names, part, record, "gone")
    _, running = held_record(names, part, record, "gone too")
    sent = NewRecord(names.retry, b"replayed", None, (), REPLAYS)
    late = envelope.with_claim(NewRecord(names.retry, b"late", None, (), REPLAYS), "nonce", 0)
    stop = envelope.cancellation(names.retry, REPLAYS, "nonce")
    broker.close()
    (before,) = leftovers_for(lab.url)
    lab.broker().connection.must_store([settled, running, envelope.settled_note(names, ref), sent, stop, late], "preparing")
    (left,) = leftovers_for(lab.url)
    assert left.waiting == before.waiting + 2  # running, sent
    assert move_back(lab.url, left, 30.0) == left.waiting


def test_only_the_groups_and_topics_that_nobody_else_needs_are_left(lab, names):
    other = lab.url.replace("group=unpoison", "group=mail")
    lab.broker("bills").close()
    lab.url = other
    lab.broker("orders").close()
    (mail,) = leftovers_for(other, ["orders"])
    assert mail.topics == (names.retry_of("mail"),)
    (unpoison_,) = leftovers_for(other.replace("group=mail", "group=unpoison"), ["orders"])
    assert (unpoison_.topics, unpoison_.groups) == ((names.retry,), ())
    both = leftovers_for(other.replace("&group=mail", ""), ["orders"])
    assert [each.topics[1:] for each in both] == [(names.dlq, names.states)] * 2


def test_where_nothing_has_to_be_moved_that_is_said(tmp_path):
    ended = unpoison("leave", "sqlite:///shop.db", cwd=tmp_path)
    assert ended.code == 1
    assert "unpoison leave is for Kafka" in ended.err
    assert "readthedocs.io/en/latest/sqlite/" in ended.err
    with pytest.raises(CapabilityError):
        leftovers_for("memory://")


def test_what_was_published_for_a_group_that_never_consumed_is_put_back_too(lab):
    lab.broker("orders").publish(given.messages("orders", 2, delay=3600))
    (left,) = leftovers_for(lab.url, ["orders"])
    assert (left.waiting, left.later, left.groups) == (2, 2, ())
    assert move_back(lab.url, left, 0.0) == 2
    (left,) = leftovers_for(lab.url, ["orders"])
    assert left.waiting == 0
