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
from unpoison.port.broker import one_look
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
        def _keep(self, message):
            super()._keep(message)
            found[self._queue] += 1

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


def test_a_first_page_of_whole_letters_takes_no_more_from_rabbitmq(lab, taken):
    letters = opened(lab)
    assert positions(letters.whole(limit=5)) == [0, 1, 2, 3, 4]
    assert taken["orders.dlq"] == 5
    assert len(letters.whole(limit=5, most_bytes=1)) == 1
    assert letters.count() == LETTERS


def test_letters_that_leave_a_dlq_of_rabbitmq_page_by_page_are_taken_once_each(lab, taken):
    letters, moved = opened(lab), []
    with one_look(letters):
        while page := letters.whole(limit=100 + len(moved) // 2):
            moved += positions(page)
            ids = [each.letter.id for each in page]
            assert letters.remove(ids) == ids
            if len(moved) < 1_000:
                assert taken["orders.dlq"] == len(moved)
        assert moved == list(range(LETTERS))
    assert (taken["orders.dlq"], letters.count()) == (LETTERS, 0)


def test_what_stays_in_a_dlq_of_rabbitmq_while_other_letters_leave_it_keeps_its_order(lab):
    letters, after = opened(lab), ""
    with one_look(letters):
        for _ in range(20):
            page = letters.whole(after=after, limit=20)
            after = page[-1].letter.id
            letters.remove([each.letter.id for each in page[::2]])
    assert positions(letters.browse(limit=LETTERS)) == [*range(1, 400, 2), *range(400, LETTERS)]


def test_pages_of_whole_letters_that_stay_keep_their_order_in_rabbitmq(lab):
    """More pages than consumers whose messages RabbitMQ puts back in order."""
    letters, seen, after = opened(lab), [], ""
    with one_look(letters):
        while page := letters.whole(after=after, limit=50):
            seen += positions(page)
            after = page[-1].letter.id
    assert seen == positions(letters.browse(limit=LETTERS)) == list(range(LETTERS))


def test_letters_that_leave_a_dlq_of_sqs_page_by_page_need_one_pass(sqs):
    letters, moved = opened(sqs), []
    with one_look(letters):
        while page := letters.whole(limit=500):
            moved += positions(page)
            assert len(letters.remove([each.letter.id for each in page])) == len(page)
    assert sorted(moved) == list(range(LETTERS))
    assert asked(sqs, "ReceiveMessage") <= LETTERS / 10 + 40
    assert (asked(sqs, "DeleteMessageBatch"), letters.count()) == (LETTERS / 10, 0)


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


def opened(lab):
    """The DLQ as one sees it who moves letters elsewhere."""
    return lab.letters("orders")


def positions(found):
    letters = [getattr(each, "letter", each) for each in found]
    return [int(each.message.id.removeprefix("message-")) for each in letters]


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
