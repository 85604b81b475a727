"""A user who may not configure anything: create=False makes nothing, and a right or an object that is missing charges nobody."""

import re
from contextlib import suppress

import pika
import pytest

from servers.errors import ServerFailed
from tests.contract.rabbitmq_lab import RabbitMQLab
from tests.e2e.command_line import unpoison
from unpoison.app import App
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.delays import LEVELS
from unpoison.errors import BrokerUnavailable, ConfigError, Permanent, PublishFailed
from unpoison.flow import ending
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.reporting.report import Report
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained

WRITE = r"^(amq\.default|dlx|unpoison\.delay\..*)$"
READ = r"^{}(\.(dlq|dlq\.history|dlq\.lock|suspects|starts|busy|delayed))?$"
"""What docs/rabbitmq.md says that such a user needs."""


class Restricted:
    """A virtual host in which an administrator has made what sources need, and a user who may use it and make nothing."""

    def __init__(self, server, folder):
        self.server, self.lab = server, RabbitMQLab(server, folder)
        self.opened = []
        self.user = f"app-{self.lab.vhost}"
        self.password("secret")
        self.permit("orders")
        made = RabbitMQBroker(self.lab.url)
        made.open([])
        made.connections.ladder().ensure(LEVELS - 1)
        made.close()

    @property
    def url(self):
        return self.lab.url.replace("guest:guest", f"{self.user}:secret", 1)

    def password(self, password):
        self.server.http("PUT", f"/api/users/{self.user}", {"password": password, "tags": ""})

    def permit(self, source, write=WRITE, read=READ):
        rights = {"configure": "^$", "write": write, "read": read.format(re.escape(source))}
        self.server.http("PUT", f"/api/permissions/{self.lab.vhost}/{self.user}", rights)

    def made(self, source):
        """What an administrator makes, who runs the script; `orders.made` is not part of it."""
        broker = RabbitMQBroker(self.lab.url)
        broker.open([source])
        broker.close()
        with suppress(ServerFailed):  # an earlier test did that
            self.http("DELETE", "exchanges", f"{source}.made")
        self.permit(source)
        return source

    def http(self, method, kind, name=""):
        return self.server.http(method, f"/api/{kind}/{self.lab.vhost}/{name}".rstrip("/"))

    def objects(self):
        queues, exchanges = ({each["name"] for each in self.http("GET", kind)} for kind in ("queues", "exchanges"))
        bound = {(each["source"], each["destination"], each["properties_key"]) for each in self.http("GET", "bindings")}
        return queues, exchanges, bound

    def channel(self):
        """An administrator's."""
        self.opened.append(pika.BlockingConnection(pika.URLParameters(self.lab.url)))
        return self.opened[-1].channel()

    def app(self):
        self.opened.append(App(self.url, create=False))
        return self.opened[-1]

    def wait_until_nothing_is_delayed(self):
        broker = RabbitMQBroker(self.lab.url)
        broker.open([])
        wait_until(lambda: broker.connections.ladder().waiting() == 0, lambda: "Something is left in the queues that delay")
        broker.close()

    def end_test(self):
        while self.opened:
            self.opened.pop().close()

    def close(self):
        self.lab.__exit__(None, None, None)
        self.server.http("DELETE", f"/api/users/{self.user}")


@pytest.fixture(scope="module", params=["rabbitmq", pytest.param("rabbitmq_4", marks=pytest.mark.long)])
def prepared(request, tmp_path_factory):
    restricted = Restricted(request.getfixturevalue(request.param), tmp_path_factory.mktemp("place"))
    yield restricted
    restricted.close()


@pytest.fixture
def place(prepared):
    yield prepared
    prepared.end_test()


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(ending, "RETRY_BROKER", (0.05,))


def test_a_user_who_may_make_nothing_retries_dead_letters_looks_and_replays(place):
    place.made("orders")
    before = place.objects()
    starts: list[tuple[int, int]] = []

    def handle(number: int, delivery: Delivery) -> None:
        starts.append((number, delivery.attempt))
        if number == 1 and delivery.attempt == 1:
            raise ConnectionError("not yet")
        if number == 2 and len(starts) < 5:
            raise Permanent("poison")

    app = given.consumer(place.app(), "orders", handle, backoff=Backoff.fixed(0.1))
    app.publish_many("orders", [0, 1, 2])
    assert drained(app)["orders"].dead == 1
    letters = app.dlq("orders")
    assert [letter.body for letter in letters.letters()] == [b"2"]
    assert (letters.count(), len(letters.replay_all().replayed)) == (1, 1)
    assert drained(app)["orders"].done == 1
    assert sorted(starts) == [(0, 1), (1, 1), (1, 2), (2, 1), (2, 1)]
    assert place.objects() == before


def test_a_look_from_the_command_line_makes_nothing(place, tmp_path):
    """With an app that says create=False, whoever the user is."""
    (tmp_path / "parcel_shop.py").write_text(
        f"from unpoison import App\napp = App({place.lab.url!r}, create=False)\n@app.consumer('unmade')\ndef f(x): ...\n"
    )
    before = place.objects()
    ended = unpoison("dlq", "ls", "--app", "parcel_shop:app", cwd=tmp_path)
    assert ended.code == 1
    assert "Missing in" in ended.err
    assert "queue 'unmade.dlq', queue 'unmade.dlq.history', queue 'unmade.dlq.lock'" in " ".join(ended.err.split())
    assert place.objects() == before


def test_all_that_is_missing_is_told_at_once_and_nothing_is_made(place):
    place.made("bills")
    channel = place.channel()
    for queue in ("bills.dlq.history", "bills.starts", "unpoison.delay.0.3s"):
        channel.queue_delete(queue)
    channel.queue_unbind("bills.dlq", "dlx", "bills")
    place.permit(
        "bills", write=r"^(dlx|unpoison\.delay\.[^1]*|unpoison\.delay\.[1-9]0+s)$", read="^bills(.dlq.*|.busy|.delayed)?$"
    )
    before = place.objects()
    with pytest.raises(ConfigError) as told:
        drained(given.consumer(place.app(), "bills", print))
    try:
        for word in (
            "'bills.dlq.history'",
            "'bills.starts'",
            "'unpoison.delay.0.3s'",
            "binding of 'bills.dlq' to exchange 'dlx'",
        ):
            assert word in str(told.value)
        for right in (
            "read on 'bills.suspects'",
            "read on 'bills.starts'",
            "write on 'amq.default'",
            "write on 'unpoison.delay.1'",
        ):
            assert right in str(told.value)
        assert "unpoison plan-topology" in str(told.value)
        assert place.user in str(told.value)
        assert place.objects() == before
    finally:
        _mend(place, "bills")
    assert drained(given.consumer(place.app(), "bills", print)) == {}


@pytest.mark.parametrize(
    ("exchange", "to", "arguments"),
    [
        ("unpoison.delay.0", "unpoison.delay.0.7s", {"x-match": "all", "unpoison-d0": 7}),
        ("unpoison.delay.3", "unpoison.delay.400s", {"x-match": "all", "unpoison-d3": 4}),
    ],
)
def test_a_delay_queue_that_is_not_bound_is_told(place, exchange, to, arguments):
    place.made("bills")
    channel = place.channel()
    channel.queue_unbind(to, exchange, "", arguments)
    try:
        with pytest.raises(ConfigError, match=f"binding of '{to}' to exchange '{exchange}'"):
            drained(given.consumer(place.app(), "bills", print))
    finally:
        channel.queue_bind(to, exchange, "", arguments)
    drained(given.consumer(place.app(), "bills", print))
    place.wait_until_nothing_is_delayed()


def _mend(place, source):
    broker = RabbitMQBroker(place.lab.url)
    broker.open([source])
    broker.connections.ladder().ensure(0)
    broker.close()
    place.permit(source)


@pytest.mark.parametrize("write", [r"^(dlx|unpoison\.delay\..*)$", r"^(amq\.default|dlx)$"], ids=["amq.default", "delays"])
def test_a_right_that_goes_away_pauses_and_charges_nobody(place, write):
    source = place.made("parcels")
    starts: list[tuple[int, bool]] = []

    def handle(_: int, delivery: Delivery) -> None:
        starts.append((delivery.attempt, delivery.returned))
        if len(starts) == 1:
            place.permit(source, write=write)
            raise ConnectionError("not yet")

    app = given.consumer(place.app(), source, handle, backoff=Backoff.fixed(0.1), max_attempts=2)
    app.publish(source, 1)
    with Journal() as journal, Running(app, until_empty=True) as running:
        journal.wait_for("pause")
        assert "grant this right" in journal.of("pause")[0]
        place.permit(source)
        journal.wait_for("resume")
        assert running.wait()[source].done == 1
    assert starts == [(1, False), (2, False)]


def test_beside_what_may_not_be_written_nothing_is_stored_twice(place):
    """RabbitMQ ends the channel, and says nothing of what else was sent on it."""
    source = place.made("pairs")
    broker = RabbitMQBroker(place.url)
    broker.open([source], create=False, ring=lambda: None)
    given.publish(broker, given.messages(source, 2))
    first, second = broker.fetch(source, 2)
    verdicts = Settlement(kept=[Kept(first, Counters(attempts=1), 0.2)], dead=[Dead(second, given.letter_of(second))])
    try:
        place.permit(source, write=r"^(amq\.default|unpoison\.delay\..*)$")
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match=r"'dlx'.* grant this right"):
                broker.settle(verdicts)
        place.permit(source)
        broker.settle(verdicts)
        place.wait_until_nothing_is_delayed()
        assert broker.depth(source).ready == 1
    finally:
        broker.close()


def test_the_right_to_read_that_goes_away_takes_nothing_back_that_runs(place):
    source = place.made("readers")
    broker = RabbitMQBroker(place.url)
    broker.open([source], create=False, ring=lambda: None)
    given.publish(broker, given.messages(source, 3))
    running = broker.fetch(source, 1)
    try:
        place.permit(source, read="^$")
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match="grant this right"):
                broker.fetch(source, 10)
        broker.settle(Settlement(gone=running))
        place.permit(source)
        assert [delivery.counters for delivery in broker.fetch(source, 10)] == [Counters(), Counters()]
    finally:
        broker.close()


@pytest.mark.parametrize("lost", [{"write": "^dlx$"}, {"read": "^suspicious$"}], ids=["write", "read"])
def test_a_suspect_is_not_charged_for_what_its_consumer_may_not_do(place, lost):
    """Put back each time, it would be dead-lettered as lost within a second."""
    source = place.made("suspicious")
    broker = RabbitMQBroker(place.url)
    broker.open([source], create=False, ring=lambda: None)
    given.publish(broker, given.messages(source, 2))
    first, second = broker.fetch(source, 2)
    broker.settle(Settlement(kept=[Kept(first, Counters(alone=True, vanished=1))]))
    wait_until(lambda: broker.has_suspect(source), lambda: "It is not there")
    try:
        place.permit(source, **lost)
        broker.connections.writer().renew()  # a channel remembers for a while what it was permitted
        for _ in range(5):
            with pytest.raises(BrokerUnavailable, match="grant this right"):
                broker.take_suspect(source, "web-1:1")
            with pytest.raises(BrokerUnavailable, match="grant this right"):
                broker.fetch(source, 1)
        broker.settle(Settlement(gone=[second]))  # what ran meanwhile is still held
        place.permit(source)
        assert broker.has_suspect(source)
        suspect = broker.take_suspect(source, "web-1:1")
        assert suspect.counters == Counters(alone=True, vanished=1)
        broker.settle(Settlement(gone=[suspect]))
        assert broker.fetch(source, 1) == []
    finally:
        broker.close()


def test_a_suspect_that_could_not_be_started_is_handed_back_uncharged_by_a_stop(place):
    source = place.made("stopped")
    broker = RabbitMQBroker(place.url)
    broker.open([source], create=False, ring=lambda: None)
    given.publish(broker, given.messages(source, 1))
    (delivery,) = broker.fetch(source, 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(alone=True))]))
    wait_until(lambda: broker.has_suspect(source), lambda: "It is not there")
    place.permit(source, write="^dlx$")
    broker.connections.writer().renew()
    with pytest.raises(BrokerUnavailable, match="grant this right"):
        broker.take_suspect(source, "web-1:1")
    place.permit(source)
    broker.close()
    broker.open([source], create=False, ring=lambda: None)
    wait_until(lambda: broker.has_suspect(source), lambda: "It is gone")
    assert broker.take_suspect(source, "web-1:2").counters == Counters(alone=True)
    broker.close()


def test_a_login_that_is_refused_in_the_middle_of_a_run_pauses_it(place, monkeypatch):
    source = place.made("logins")
    said: list[str] = []
    monkeypatch.setattr(Report, "paused", lambda _, __, error: said.append(str(error)))
    done: list[int] = []
    app = given.consumer(place.app(), source, done.append)
    app.publish(source, 1)
    with Running(app) as running:
        wait_until(lambda: done == [1], lambda: "Nothing was handled")
        place.server.http("DELETE", f"/api/users/{place.user}")
        broker = running.run._consumers[0]._broker
        assert isinstance(broker, RabbitMQBroker)
        broker.connections.part_lost()  # the server ends the connections of a deleted user, most of the time
        wait_until(lambda: any("refuses user" in text for text in said), lambda: f"It said {said}")
        place.password("secret")
        place.permit(source)
        app.publish(source, 2)
        wait_until(lambda: done == [1, 2], lambda: "It did not go on")


def test_one_who_only_publishes_needs_no_more_than_the_right_to_write(place):
    source = place.made("letters")
    place.permit(source, read="^$")
    app = place.app()
    app.publish(source, 1)
    with pytest.raises(PublishFailed, match="cannot route to queue 'misspelt'"):
        app.publish("misspelt", 1)
    place.permit(source)
    assert drained(given.consumer(place.app(), source, print))[source].done == 1
