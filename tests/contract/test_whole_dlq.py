"""Thousands of dead letters where a DLQ can only be read as a whole: every command reads it once, and puts it back as it was."""

import json
import re
from collections import Counter

import click.testing
import pytest

from tests.bulk_letters import fill
from tests.contract.rabbitmq_lab import ClassicLab, RabbitMQLab
from tests.contract.sqs_lab import SQSLab
from tests.contract.test_bulk_letters import closed_afterwards
from unpoison.brokers.rabbitmq.queue_pass import QueuePass
from unpoison.cli.main import cli
from unpoison.testing import given
from unpoison.testing.running import drained

LETTERS = 3_000
"""More than a quorum queue gives to one consumer that names no limit."""


class AllClassicLab(ClassicLab):
    """Its DLQ is a classic queue too."""

    def __init__(self, server, folder):
        super().__init__(server, folder)
        self._declare("orders.dlq")


@pytest.fixture(params=["quorum", "classic", pytest.param("quorum of 4", marks=pytest.mark.long)])
def lab(request, folder):
    kind, server = (AllClassicLab, "rabbitmq") if request.param == "classic" else (RabbitMQLab, "rabbitmq")
    with kind(request.getfixturevalue("rabbitmq_4" if request.param == "quorum of 4" else server), folder) as lab:
        fill(lab.url, "orders", LETTERS)
        yield lab


@pytest.fixture
def sqs(folder, elasticmq):
    with SQSLab(elasticmq, folder, with_proxy=True) as lab:
        assert lab.proxy is not None
        fill(lab.url, "orders", LETTERS, size=200)
        lab.proxy.seen.clear()
        yield lab


@pytest.fixture
def taken(monkeypatch):
    """How many messages of each queue were taken, and how often the queue was gone through."""
    found = Counter()

    class Counted(QueuePass):
        def arrived(self, message):
            before = self.taken
            super().arrived(message)
            found[self._queue] += self.taken - before

    monkeypatch.setattr("unpoison.brokers.rabbitmq.deadletters.QueuePass", Counted)
    return found


def dlq(lab, monkeypatch, *arguments):
    with closed_afterwards(monkeypatch):
        ended = click.testing.CliRunner().invoke(
            cli, ["dlq", *arguments, "--url", lab.url, "--source", "orders", "--json"], catch_exceptions=False
        )
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def numbers(letters):
    return [int(letter["message_id"].removeprefix("message-")) for letter in letters]


def test_a_count_and_the_oldest_letters_of_rabbitmq_need_no_pass(lab, monkeypatch, taken):
    assert dlq(lab, monkeypatch, "count")["orders"]["dead"] == LETTERS
    assert taken["orders.dlq"] == 0
    assert numbers(dlq(lab, monkeypatch, "ls", "--limit", "5")) == [0, 1, 2, 3, 4]
    assert taken["orders.dlq"] == 5
    assert lab.dlq("orders").replay_one().count == 1
    assert numbers(dlq(lab, monkeypatch, "ls", "--limit", "3")) == [1, 2, 3]
    assert taken["orders.dlq"] < LETTERS
    assert numbers(dlq(lab, monkeypatch, "ls")) == list(range(1, LETTERS))
    assert numbers(dlq(lab, monkeypatch, "ls", "--limit", "3")) == [1, 2, 3]
    assert numbers(dlq(lab, monkeypatch, "ls")) == list(range(1, LETTERS))


def test_each_command_of_rabbitmq_takes_each_letter_once_and_puts_them_back_in_order(lab, monkeypatch, taken):
    left = list(range(LETTERS))

    def one_pass(*arguments):
        taken.clear()
        told = dlq(lab, monkeypatch, *arguments)
        assert taken["orders.dlq"] == len(left)
        return told

    everything = one_pass("ls")
    assert numbers(everything) == left
    ids = [letter["id"] for letter in everything]
    assert one_pass("show", "message-2500")["id"] == ids[2_500]
    assert one_pass("replay", ids[7], "message-2600") == {"replayed": [ids[7], ids[2_600]], "gone": []}
    left = [number for number in left if number not in (7, 2_600)]
    assert one_pass("discard", ids[8])["discarded"] == [ids[8]]
    left.remove(8)
    assert numbers(one_pass("ls")) == left
    assert one_pass("replay", "--all", "--yes") == {"replayed": [ids[number] for number in left], "gone": []}
    assert sorted(received(lab)) == [number for number in range(LETTERS) if number != 8]
    assert dlq(lab, monkeypatch, "purge", "--yes") == {"purged": LETTERS - 1, "history": LETTERS}
    assert dlq(lab, monkeypatch, "count")["orders"] == {"dead": 0, "replayed": 0, "discarded": 0}


def test_with_a_filter_each_letter_of_rabbitmq_is_taken_once(lab, monkeypatch, taken):
    where = ("--where", "id:message-25*")  # 25, 250 to 259, 2500 to 2599
    assert dlq(lab, monkeypatch, "count", *where)["orders"]["dead"] == 111
    assert taken["orders.dlq"] == LETTERS
    taken.clear()
    assert len(dlq(lab, monkeypatch, "replay", *where, "--yes")["replayed"]) == 111
    assert taken["orders.dlq"] == LETTERS
    taken.clear()
    left = [n for n in range(LETTERS) if re.fullmatch("2.*9", str(n)) and not str(n).startswith("25")]
    assert numbers(dlq(lab, monkeypatch, "ls", "--where", "id:message-2*9")) == left
    assert taken["orders.dlq"] == LETTERS - 111


def test_a_purge_of_rabbitmq_leaves_what_came_after_it_began(lab, monkeypatch, taken):
    def late(*_):
        if not fresh:
            fresh.append(True)
            fill(lab.url, "orders", 10)

    fresh = []
    assert lab.dlq("orders").purge(progress=late).purged == LETTERS
    assert taken["orders.dlq"] == LETTERS
    assert lab.dlq("orders").count() == 10


def test_a_pass_over_sqs_is_one_request_for_ten_letters_and_one_to_put_them_back(sqs, monkeypatch):
    assert len(dlq(sqs, monkeypatch, "ls", "--limit", "5")) == 5
    receives, puts = asked(sqs, "ReceiveMessage"), asked(sqs, "ChangeMessageVisibilityBatch")
    assert LETTERS / 10 <= receives <= LETTERS / 10 + 40  # it gives nine now and then, and the last ones find nothing
    assert LETTERS / 10 <= puts <= LETTERS / 10 + 40
    assert asked(sqs, "DeleteMessageBatch") == 0
    sqs.proxy.seen.clear()
    assert len(dlq(sqs, monkeypatch, "replay", "--all", "--yes")["replayed"]) == LETTERS
    assert asked(sqs, "ReceiveMessage") <= LETTERS / 10 + 40
    assert asked(sqs, "DeleteMessageBatch") == LETTERS / 10
    assert asked(sqs, "ChangeMessageVisibilityBatch") == 0


@pytest.mark.long
def test_each_command_of_sqs_is_complete_and_takes_each_letter_once(sqs, monkeypatch):
    everything = dlq(sqs, monkeypatch, "ls")
    ids = [letter["id"] for letter in everything]
    assert numbers(everything) == list(range(LETTERS))
    for arguments in (("show", "message-2500"), ("replay", ids[7], "message-2600"), ("discard", ids[8])):
        sqs.proxy.seen.clear()
        dlq(sqs, monkeypatch, *arguments)
        assert asked(sqs, "ReceiveMessage") <= LETTERS / 10 + 40
    left = [id_ for number, id_ in enumerate(ids) if number not in (7, 8, 2_600)]
    assert dlq(sqs, monkeypatch, "replay", "--all", "--yes") == {"replayed": left, "gone": []}
    assert sorted(received(sqs)) == [number for number in range(LETTERS) if number != 8]
    assert dlq(sqs, monkeypatch, "purge", "--yes") == {"purged": LETTERS - 1, "history": LETTERS}
    assert sqs.dlq("orders").count() == 0


def asked(lab, operation):
    """How many requests of this kind there were for the DLQ."""
    return len(lab.proxy.asked(operation, "orders-dlq"))


def received(lab):
    """The numbers of all messages that were sent again; they fail once more."""
    found = []

    def fail(body: bytes) -> None:
        found.append(int(body.split(b" ")[0]))
        raise ValueError("no")

    drained(given.consumer(lab.app(), "orders", fail))
    return found
