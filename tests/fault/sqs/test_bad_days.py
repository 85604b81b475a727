"""SQS refuses everything for a while, credentials expire, somebody deletes a queue: consumers say so, wait, and go on."""

import json
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tests.contract.sqs_lab import SQSLab
from tests.contract.sqs_proxy import refusal
from unpoison import App
from unpoison.brokers.sqs import connection
from unpoison.errors import BrokerUnavailable
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained

Answer = tuple[int, bytes] | None


@pytest.fixture
def lab(proxied_lab):
    return proxied_lab


ANSWERS = {
    "throttled": (400, refusal("RequestThrottled"), "RequestThrottled"),
    "throttled, in other words": (400, refusal("ThrottlingException", "Rate exceeded"), "Rate exceeded"),
    "overloaded": (503, refusal("ServiceUnavailable"), "ServiceUnavailable"),
    "behind a broken gateway": (503, b"<html><body>503 Service Unavailable</body></html>", "503"),
    "out of its mind": (200, b"<html>Welcome to the hotel</html>", "so it is not from SQS"),
}


FIRST, *OTHERS = [pytest.param(*answer, id=name) for name, answer in ANSWERS.items()]


@pytest.mark.parametrize(
    ("status", "body", "words"), [FIRST, *(pytest.param(*each.values, id=each.id, marks=pytest.mark.long) for each in OTHERS)]
)
def test_a_server_that_refuses_everything_is_waited_for_and_nothing_runs_twice(lab, status, body, words):
    starts: list[int] = []
    is_bad = threading.Event()

    def handle(number: int) -> None:
        starts.append(number)
        if len(starts) == 10:
            is_bad.set()

    lab.proxy.says = lambda operation, asked: (status, body) if is_bad.is_set() else None
    app = given.consumer(lab.app(prefetch=5), "orders", handle)
    app.publish_many("orders", range(30))
    with Journal(pause=is_bad.clear) as journal, Running(app):
        wait_until(lambda: len(starts) >= 30, lambda: f"Only {len(starts)} of 30 were handled")
        journal.wait_for("resume")
    (told,) = journal.of("pause")
    assert words in told
    drained(app)
    assert sorted(starts) == list(range(30))
    assert lab.dlq("orders").count() == 0


@pytest.mark.long
def test_too_many_messages_in_flight_is_said_and_what_runs_is_settled(lab):
    """SQS lets 120,000 messages of a queue be in flight; who asks for more is told OverLimit, until some are settled."""
    started, may_end, is_over = threading.Event(), threading.Event(), threading.Event()
    starts: list[int] = []

    def handle(number: int) -> None:
        starts.append(number)
        started.set()
        assert may_end.wait(60)

    def until_one_is_settled(operation: str, asked: dict) -> Answer:
        if operation == "DeleteMessageBatch":
            is_over.set()
        if operation == "ReceiveMessage" and started.is_set() and not is_over.is_set():
            return 403, refusal("OverLimit", "Too many messages are in flight")
        return None

    lab.proxy.says = until_one_is_settled
    app = given.consumer(lab.app(prefetch=1), "orders", handle, isolation="thread", concurrency=2)
    app.publish_many("orders", range(3))
    with Journal() as journal, Running(app):
        journal.wait_for("pause")
        may_end.set()
        wait_until(lambda: len(starts) == 3, lambda: f"Only {starts} were started")
    assert "OverLimit" in journal.of("pause")[0]
    drained(app)
    assert sorted(starts) == [0, 1, 2]


def test_credentials_that_expire_are_read_again_from_their_file(tmp_path, elasticmq, monkeypatch):
    """Whoever logs in by hand or by a side-car renews a file; botocore itself reads it once."""
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for known in ("_clients", "_sessions"):  # of this test alone
        monkeypatch.setattr(connection, known, {})
    _log_in(file, "OLD")
    with SQSLab(elasticmq, tmp_path, with_proxy=True) as lab:
        url = lab.url.replace("test:test@", "")
        app = App(url)
        app.publish("orders", 1)
        lab.proxy.accepts = lambda authorization: "Credential=OLD/" not in authorization
        with pytest.raises(BrokerUnavailable, match=r"ExpiredToken.*Renew the credentials"):
            app.publish("orders", 2)
        file.unlink()
        with pytest.raises(BrokerUnavailable, match="ExpiredToken"):
            app.publish("orders", 3)
        _log_in(file, "NEW")
        with pytest.raises(BrokerUnavailable, match="ExpiredToken"):
            app.publish("orders", 4)
        app.publish("orders", 5)
        app.close()
        assert lab.broker("orders").depth("orders").ready == 2


def _log_in(file, key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\naws_session_token = token\n")


@pytest.fixture
def fair(tmp_path, elasticmq):
    """What is put aside comes again while a test waits, and a consumer on a busy machine has time enough to renew."""
    with SQSLab(elasticmq, tmp_path, visibility=10, with_proxy=True) as lab:
        yield lab


DELETED = ("orders", "orders-suspects", "orders-replays", "orders-dlq-history", "orders-starts")


@pytest.mark.parametrize("queue", ["orders-dlq", *(pytest.param(name, marks=pytest.mark.long) for name in DELETED)])
def test_a_queue_that_is_deleted_while_a_consumer_runs_is_made_anew(fair, queue):
    """One message of each kind before, and one of each after it: done, retried, dead, and one that must run alone. On a busy
    machine the consumer may lose some to itself, and they run once more; none may be missing."""
    handled: list[str] = []

    def handle(word: str) -> None:
        handled.append(word)
        if word.startswith("poison"):
            raise ValueError(word)
        if word.startswith("retry") and handled.count(word) == 1:
            raise ConnectionError(word)

    app = given.consumer(fair.app(), "orders", handle, backoff=Backoff.immediate())
    with Running(app):
        for turn in ("before", "after"):
            app.publish_many("orders", [f"{kind} {turn}" for kind in ("plain", "poison", "retry")])
            _publish_suspect(fair, f"suspect {turn}")
            wanted = Counter(f"{kind} {turn}" for kind in ("plain", "poison", "retry", "retry", "suspect"))
            wait_until(
                lambda: wanted <= Counter(handled),  # noqa: B023
                lambda: f"Only {handled} were handled",
            )
            wait_until(lambda: fair.broker("orders").depth("orders").empty, lambda: "Something is left")
            if turn == "before":
                fair.queue(queue).delete()
    letters = {letter.body for letter in fair.dlq("orders").letters()}
    assert letters == ({b"poison after"} if queue == "orders-dlq" else {b"poison after", b"poison before"})


def _publish_suspect(lab, word: str) -> None:
    told = json.dumps({"id": word, "counters": {"alone": True}})
    where = lab.queue("orders-suspects")
    wait_until(_is_there(where), lambda: f"{where.name} is not there")
    where.send(word, MessageAttributes={"unpoison": {"DataType": "String", "StringValue": told}})


def _is_there(queue) -> Callable[[], bool]:
    def there() -> bool:
        try:
            return bool(queue.url)
        except queue.client.exceptions.QueueDoesNotExist:
            return False

    return there


def test_a_dlq_that_is_deleted_while_a_letter_is_to_be_written_is_made_anew(lab):
    broker = lab.broker("orders")
    broker.publish(given.messages("orders", 2))
    poison, other = broker.fetch("orders", 2)
    lab.queue("orders-dlq").delete()
    settlement = Settlement(kept=[Kept(other, Counters(attempts=1), 600.0)], dead=[Dead(poison, given.letter_of(poison))])
    _settled_at_last(broker, settlement)
    depth = broker.depth("orders")
    assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (0, 1, 0, 1)


def _settled_at_last(broker, settlement: Settlement) -> None:
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="does not exist"):
            broker.settle(settlement)
    broker.settle(settlement)


@pytest.mark.parametrize(
    "queue",
    ["orders-dlq-lock.fifo", *(pytest.param(name, marks=pytest.mark.long) for name in ("orders-replays", "orders-dlq-history"))],
)
def test_a_queue_that_is_deleted_while_somebody_looks_at_letters_is_made_anew(lab, queue):
    given.dead_letters(lab, "orders", [b"1"])
    dlq = lab.dlq("orders")
    assert len(list(dlq.letters())) == 1
    lab.queue(queue).delete()
    with pytest.raises(BrokerUnavailable, match=r"created again\. Try again"):
        list(dlq.letters())
    assert [letter.body for letter in dlq.letters()] == [b"1"]


@pytest.mark.long
def test_without_create_a_deleted_queue_is_waited_for_and_the_command_is_said(lab):
    handled: list[int] = []
    lab.broker("orders")
    app = given.consumer(App(lab.url, create=False), "orders", handled.append, schema=int)
    app.publish("orders", 1)
    with Journal() as journal, Running(app):
        wait_until(lambda: handled == [1], lambda: f"{handled} were handled")
        lab.queue("orders").delete()
        journal.wait_for("pause")
        lab.broker("orders").publish([])
        app.publish("orders", 2)
        wait_until(lambda: handled == [1, 2], lambda: f"{handled} were handled")
    app.close()
    assert "aws sqs create-queue --queue-name" in journal.of("pause")[0]


def test_without_create_a_deleted_queue_is_waited_for_at_every_try(lab):
    lab.broker("orders")
    broker = lab.connect()
    broker.open(["orders"], create=False)
    lab.queue("orders").delete()
    for _ in range(3):
        with pytest.raises(BrokerUnavailable, match="aws sqs create-queue"):
            broker.fetch("orders", 1)
    lab.queue("orders").create()
    assert list(broker.fetch("orders", 1)) == []
    broker.close()
