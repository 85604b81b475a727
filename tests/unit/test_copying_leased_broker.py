"""The broker of the kit: one call at a time, lost messages are told of once, what was deleted is created again."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost, PayloadError, Refusal
from unpoison.model.message import UNTRIED, Counters, Delivery, Outgoing
from unpoison.port.broker import STORED, Finding, Kept, Published, Refused, Settlement
from unpoison.port.copying.leased_broker import LeasedBroker, publish
from unpoison.port.copying.leased_source import LeasedSource, returned
from unpoison.port.copying.leases import Leases
from unpoison.port.copying.settling import ALL_LET_GO, Item, LetGo, Receipt, Stored

FINDING = Finding("odd", "It is odd.", "Make it even.")


class Deleted(BrokerUnavailable):
    pass


class Forbidden(BrokerUnavailable):
    pass


class Client:
    def __init__(self) -> None:
        self.created: set[str] = set()
        self.said: list[str] = []
        self.broken: Exception | None = None

    def open(self, *, create: bool) -> None:
        self.said.append("open" if create else "open without creating")

    def ensure(self, source: str) -> Sequence[Finding]:
        self.created.add(source)
        if self.broken is not None:
            raise self.broken
        return [FINDING]

    def topic(self, source: str) -> str:
        if source == "missing":
            raise ConfigError("There is no 'missing'.")
        return f"topic of {source}"

    def remake(self, source: str) -> None:
        self.said.append(f"remake {source}")
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        self.said.append("close")


class Queue:
    """Holds messages by a clock that tests move."""

    def __init__(self, log: list[str]) -> None:
        self.now = 100.0
        self.leases = Leases[str](10.0, clock=lambda: self.now)
        self.held = self.leases.held
        self.trouble: Exception | None = None
        self._log = log

    def let_go(self, receipts: Sequence[Receipt]) -> LetGo:
        self._log += [f"let go {receipt.handle}" for receipt in receipts]
        self.leases.forget([receipt.handle for receipt in receipts])
        return ALL_LET_GO

    def renew(self) -> None:
        if self.trouble is not None:
            raise self.trouble
        self._log.append("renew")

    def give_up(self) -> None:
        self._log += [f"give up {handle}" for handle in self.leases.give_up()]


class Source(LeasedSource):
    def __init__(self, name: str, log: list[str], check: Callable[[], None]) -> None:
        super().__init__(name, 60.0)
        self.queue, self.second, self._check = Queue(log), Queue(log), check
        self.left_alone = False
        self.unread: list[Delivery] = []
        self.trouble: Exception | None = None
        self.log = log

    @property
    def subscriptions(self) -> Sequence[Queue]:
        return self.queue, self.second

    def delivery(self, handle: str) -> Delivery:
        self.queue.leases.take([handle], self.queue.now)
        return Delivery(Receipt(self.queue, handle), self.name, handle, b"")

    def fetch(self, limit: int) -> list[Delivery]:
        self._check()
        if self.trouble is not None:
            raise self.trouble
        return [self.delivery("one")]

    def fetch_paused(self, limit: int) -> list[Delivery]:
        self._check()
        return [self.delivery("probe")]

    def has_suspect(self) -> bool:
        self._check()
        return False

    def take_suspect(self, by: str) -> Delivery | None:
        self._check()
        return None

    def verify(self) -> None:
        self._check()

    def has_published(self) -> None:
        self.log.append("has published")

    def stop_listening(self) -> None:
        self.log.append("stop listening")

    def is_left_alone(self, after: float) -> bool:
        return self.left_alone

    def unfetched(self) -> Iterator[Sequence[Delivery]]:
        unread, self.unread, self.left_alone = self.unread, [], False
        yield unread

    def close(self) -> None:
        self._check()
        self.log.append("closed")


class Broker(LeasedBroker[Client, Source]):
    gone = (Deleted,)

    def __init__(self) -> None:
        super().__init__(Client(), "The server", "They were lost.")
        self.log: list[str] = []
        self.full: Exception | None = None

    def check_locked(self) -> None:
        """Fails if another thread could call at the same time."""
        free: list[bool] = []

        def attempt() -> None:
            if self._lock.acquire(blocking=False):
                self._lock.release()
                free.append(True)

        other = threading.Thread(target=attempt)
        other.start()
        other.join()
        assert not free, "the lock is not held"

    def _source(self, name: str) -> Source:
        return Source(name, self.log, self.check_locked)

    def _store(self, items: Sequence[Item]) -> Stored:
        self.check_locked()
        if self.full is not None:
            raise self.full
        self.log += [f"copy {item.delivery.id}" for item in items]
        return Stored()

    def _publish(self, messages: Sequence[Outgoing]) -> Published:
        return STORED


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    made.open(["orders"])
    yield made
    made.close()


def test_each_call_of_the_consumer_holds_the_lock(broker: Broker) -> None:
    (delivery,) = broker.fetch("orders", 1)
    assert not broker.has_suspect("orders")
    assert broker.take_suspect("orders", "host:1") is None
    broker.extend([delivery])
    broker.settle(Settlement(kept=[Kept(delivery, UNTRIED)]))


def test_a_copy_is_stored_before_its_original_is_let_go(broker: Broker) -> None:
    (delivery,) = broker.fetch("orders", 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(attempts=1), 5.0)]))
    assert broker.log == ["copy one", "let go one"]


def test_nothing_comes_to_a_consumer_that_hands_messages_back(broker: Broker) -> None:
    (delivery,) = broker.fetch("orders", 1)
    broker.settle(Settlement(kept=[Kept(delivery, delivery.counters)]))
    assert broker.log == ["stop listening", "copy one", "let go one"]


def test_what_was_held_for_too_long_is_not_settled_and_what_is_ours_goes_back(broker: Broker) -> None:
    (late,) = broker.fetch("orders", 1)
    source = broker.known["orders"]
    source.queue.now += 9.0
    ours = source.delivery("two")
    with pytest.raises(OwnershipLost, match=r"They were lost\."):
        broker.settle(Settlement(gone=[late]))
    assert broker.log == ["give up two"]
    with pytest.raises(OwnershipLost):
        broker.extend([ours])


def test_a_fetch_tells_once_that_something_was_lost(broker: Broker) -> None:
    broker.fetch("orders", 1)
    broker.known["orders"].queue.now += 9.0
    with pytest.raises(OwnershipLost):
        broker.fetch("orders", 1)
    assert [each.id for each in broker.fetch("orders", 1)] == ["one"]


@pytest.mark.parametrize(
    "call",
    [
        lambda broker: broker.fetch("orders", 1),
        lambda broker: broker.has_suspect("orders"),
        lambda broker: broker.take_suspect("orders", "me"),
    ],
    ids=["fetch", "has_suspect", "take_suspect"],
)
def test_that_something_was_lost_is_told_before_a_silent_server_is_asked_anything(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, call: Callable[[Broker], object]
) -> None:
    broker.fetch("orders", 1)
    broker.known["orders"].queue.now += 9.0
    asked: list[str] = []
    monkeypatch.setattr(broker.client, "topic", asked.append)
    monkeypatch.setattr(Source, "verify", lambda source: asked.append("verify"))
    with pytest.raises(OwnershipLost):
        call(broker)
    assert asked == []


def test_what_was_deleted_is_created_again_and_the_next_try_finds_it(broker: Broker) -> None:
    broker.fetch("orders", 1)
    broker.known["orders"].trouble = Deleted("The queue is gone.")
    with pytest.raises(BrokerUnavailable, match=r"The queue is gone\. It was created again"):
        broker.fetch("orders", 1)
    assert broker.client.said == ["open", "remake orders"]


def test_a_queue_that_is_gone_when_messages_are_kept_for_longer_is_created_again(broker: Broker) -> None:
    (delivery,) = broker.fetch("orders", 1)
    broker.known["orders"].queue.trouble = Deleted("The queue is gone.")
    with pytest.raises(BrokerUnavailable, match="It was created again"):
        broker.extend([delivery])
    assert broker.client.said == ["open", "remake orders"]


def left_alone(broker: Broker) -> Source:
    """A source in which "two" waits that nobody fetches, and that cannot be given back at first."""
    broker.fetch("orders", 1)
    broker._keeper.close()  # the tests do what it does
    broker.full = BrokerUnavailable("It is full.")
    source = broker.known["orders"]
    source.unread, source.left_alone = [source.delivery("two")], True
    with pytest.raises(BrokerUnavailable):
        broker._look_after()
    broker.log.clear()
    return source


def test_what_could_not_be_given_back_is_given_back_the_next_time(broker: Broker) -> None:
    source = left_alone(broker)
    with pytest.raises(BrokerUnavailable):
        broker._look_after()
    broker.full = None
    broker._look_after()
    broker._look_after()
    assert broker.log == ["copy two", "let go two"]
    assert list(source.queue.leases.until) == ["one"]


def test_what_was_lost_meanwhile_is_not_given_back_any_more(broker: Broker) -> None:
    source = left_alone(broker)
    source.queue.now += 9.0
    with pytest.raises(OwnershipLost):
        broker.fetch("orders", 1)
    broker.full = None
    broker._look_after()
    assert broker.log == []


def test_a_source_that_gives_nothing_back_does_not_keep_others_from_it(broker: Broker) -> None:
    left_alone(broker)
    broker.fetch("other", 1)
    other = broker.known["other"]
    other.left_alone = True
    with pytest.raises(BrokerUnavailable):
        broker._look_after()
    assert not other.left_alone


def test_a_close_returns_what_is_held_though_it_cannot_be_given_back_as_it_was(broker: Broker) -> None:
    source = left_alone(broker)
    source.unread = [source.delivery("three")]
    broker.close()
    assert broker.log == ["closed", "give up one", "give up two", "give up three"]


def test_a_pause_hands_back_what_nobody_has_fetched_and_from_then_on_no_more_is_fetched_than_is_asked_for(broker: Broker) -> None:
    (running,) = broker.fetch("orders", 1)
    source = broker.known["orders"]
    source.unread = [source.delivery("two")]
    broker.pause("orders")
    assert broker.log == ["copy two", "let go two"]
    assert [each.id for each in broker.fetch("orders", 1)] == ["probe"]
    broker.settle(Settlement(gone=[running]))
    broker.pause("orders")
    broker.resume("orders")
    assert [each.id for each in broker.fetch("orders", 1)] == ["one"]


def test_a_source_that_was_paused_before_its_first_message_is_paused(broker: Broker) -> None:
    broker.pause("orders")
    assert [each.id for each in broker.fetch("orders", 1)] == ["probe"]
    assert [each.id for each in broker.fetch("other", 1)] == ["one"]


def test_what_comes_late_to_a_paused_source_goes_back_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.fetch("orders", 1)
    broker._keeper.close()  # the tests do what it does
    source, asked = broker.known["orders"], []
    monkeypatch.setattr(source, "is_left_alone", lambda after: asked.append(after) or False)
    broker._look_after()
    broker.pause("orders")
    broker._look_after()
    assert (asked[0] > 0, asked[1]) == (True, 0.0)


def test_a_source_that_is_paused_in_vain_is_paused_and_hands_back_later(broker: Broker) -> None:
    broker.fetch("orders", 1)
    broker._keeper.close()
    source = broker.known["orders"]
    source.unread, broker.full = [source.delivery("two")], BrokerUnavailable("It is full.")
    with pytest.raises(BrokerUnavailable, match="It is full"):
        broker.pause("orders")
    assert [each.id for each in broker.fetch("orders", 1)] == ["probe"]
    broker.full = None
    broker._look_after()
    assert broker.log == ["copy two", "let go two"]


def test_a_close_gives_back_what_a_paused_source_would_have_kept(broker: Broker) -> None:
    broker.fetch("orders", 1)
    source, paused = broker.known["orders"], []
    source.close = lambda: paused.append(source.is_paused)
    broker.pause("orders")
    assert source.is_paused
    broker.close()
    assert paused == [False]


def test_a_queue_that_cannot_be_renewed_does_not_keep_others_from_it(broker: Broker) -> None:
    for name in ("orders", "other"):
        broker.fetch(name, 1)
    broker.known["orders"].queue.trouble = trouble = BrokerUnavailable("not now")
    with pytest.raises(BrokerUnavailable, match="not now") as raised:
        broker._renew()
    assert raised.value is trouble
    assert broker.log == ["renew", "renew", "renew"]


def test_a_source_hears_of_what_was_published_at_its_next_fetch(broker: Broker) -> None:
    broker.publish([Outgoing("1", "orders", b"")])
    broker.fetch("orders", 1)
    broker.fetch("orders", 1)
    assert broker.log == ["has published"]


def test_a_close_gives_back_what_nobody_fetched_as_it_was_and_then_the_rest(broker: Broker) -> None:
    broker.fetch("orders", 1)
    source = broker.known["orders"]
    source.unread = [source.delivery("two")]
    broker.close()
    assert broker.log == ["closed", "copy two", "let go two", "give up one"]
    assert broker.client.said == ["open", "close"]


def test_an_open_that_fails_leaves_nothing_open() -> None:
    broker = Broker()
    broker.client.broken = ConfigError("no")
    with pytest.raises(ConfigError):
        broker.open(["orders"], create=False)
    assert broker.client.said == ["open without creating", "close"]


def test_an_open_reports_findings_and_publishing_does_not_tell_again_what_it_created() -> None:
    broker = Broker()
    assert broker.open(["orders"]) == [FINDING]
    assert not broker.client.created
    broker.close()


def made_of(topic: str, message: Outgoing) -> str:
    if message.body == b"large":
        raise PayloadError("too large")
    return f"{message.id} to {topic}"


def why(no: Refused | str) -> Refused | str:
    return no


def sent(client: Client, messages: Sequence[Outgoing], *answers: dict[int, Refused | str]) -> tuple[Published, list[list[str]]]:
    batches: list[list[str]] = []
    left = iter(answers)

    def store(made: list[str]) -> dict[int, Refused | str]:
        batches.append(made)
        return next(left)

    return publish(client, messages, made_of, store, why, (Forbidden,)), batches


def test_a_publish_says_of_each_message_what_became_of_it() -> None:
    messages = [
        Outgoing(str(number), source, body)
        for number, (source, body) in enumerate(
            [("missing", b""), ("orders", b"large"), ("orders", b""), ("orders", b""), ("orders", b"")]
        )
    ]
    full = Refused(Refusal.NO_ROOM, "It is full.")
    outcome, batches = sent(Client(), messages, {0: full, 1: "no answer"})
    assert batches == [[f"{number} to topic of orders" for number in (2, 3, 4)]]
    refusals = {number: refused.refusal for number, refused in outcome.refused.items()}
    assert refusals == {0: Refusal.NO_SUCH_SOURCE, 1: Refusal.TOO_LARGE, 2: Refusal.NO_ROOM}
    assert outcome.unknown == {3: "no answer"}


def test_what_found_no_source_and_what_was_not_sent_for_it_is_sent_once_more_to_a_new_one() -> None:
    client = Client()
    gone, unsent, full = (Refused(each, "no") for each in (Refusal.NO_SUCH_SOURCE, Refusal.NOT_SENT, Refusal.NO_ROOM))
    messages = [Outgoing(str(number), "orders", b"") for number in range(5)]
    outcome, batches = sent(client, messages, {1: full, 2: gone, 3: unsent, 4: "no answer"}, {1: gone})
    assert batches[1] == ["2 to topic of orders", "3 to topic of orders"]
    assert client.said == ["remake orders"]
    assert (outcome.refused, outcome.unknown) == ({1: full, 3: gone}, {4: "no answer"})


def test_where_a_new_source_cannot_be_had_the_publish_says_why() -> None:
    client = Client()
    client.broken = ConfigError("create=False forbids it.")
    outcome, batches = sent(client, [Outgoing("1", "orders", b"")], {0: Refused(Refusal.NO_SUCH_SOURCE, "gone")})
    assert len(batches) == 1
    assert outcome.refused == {0: Refused(Refusal.NO_SUCH_SOURCE, "create=False forbids it.")}


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(Forbidden("Not you."), Refusal.NOT_PERMITTED), (BrokerUnavailable("Not now."), Refusal.NO_SUCH_SOURCE)],
)
def test_where_a_new_source_cannot_be_had_only_what_missed_it_is_told_so(error: BrokerUnavailable, refusal: Refusal) -> None:
    client = Client()
    client.broken = error
    gone, unsent = Refused(Refusal.NO_SUCH_SOURCE, "gone"), Refused(Refusal.NOT_SENT, "after another")
    messages = [Outgoing(str(number), "orders", b"") for number in range(2)]
    outcome, _ = sent(client, messages, {0: gone, 1: unsent})
    assert outcome.refused == {0: Refused(refusal, str(error)), 1: unsent}


def test_a_publish_tells_once_which_sources_it_created() -> None:
    client = Client()
    client.created.add("orders")
    assert sent(client, [Outgoing("1", "orders", b"")], {})[0].created == ("orders",)
    assert sent(client, [Outgoing("1", "orders", b"")], {})[0] is STORED


def test_a_message_that_came_back_often_is_as_one_that_came_back_twice() -> None:
    assert returned(UNTRIED, 0) == UNTRIED
    assert returned(UNTRIED, 7) == UNTRIED.returned().returned()
