"""A process can be killed at any line: no message is lost, no letter appears twice, nothing is sent twice."""

from collections import Counter
from contextlib import closing

from unpoison.app import App
from unpoison.errors import Discard
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery, Outgoing
from unpoison.port.broker import Capability, Depth, Kept, Settlement
from unpoison.store.letters.choice import letters_at, letters_of
from unpoison.store.letters.collected import CollectedLetters
from unpoison.store.letters.values import Order, StoredLetter
from unpoison.testing import given
from unpoison.testing.contract import pausing
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.kill_points import sweep
from unpoison.testing.lab import Lab
from unpoison.testing.processes import Effects
from unpoison.testing.running import drained

SURVIVES = Capability.DURABLE | Capability.SHARED
LIMIT = 4
MESSAGES = ("good", "flaky", "failing", "poison", "discarded")
LETTERS = {"failing", "poison", "undecodable"}


def test_a_consumer_killed_at_any_line_loses_nothing_and_writes_no_letter_twice(lab: Lab) -> None:
    lab.needs(SURVIVES)
    effects = Effects(lab.folder)

    def prepare(source: str) -> None:
        effects.clear()
        _publish_one_of_each(lab, source)

    def consume(source: str) -> None:
        _consumer(lab, source, effects).run(until_empty=True)

    def check(source: str) -> None:
        drained(_consumer(lab, source, effects))
        counted = effects.counted()
        for message in ("returned", "good", "flaky"):
            assert 1 <= counted[f"done {message}"] <= 2, f"{message!r} was done {counted[f'done {message}']} times"
        # Without atomic steps a kill between copy and letting go leaves both, each with starts of its own.
        assert counted["start failing"] <= (LIMIT + 1 if lab.is_atomic else 2 * LIMIT + 1)
        assert counted["start discarded"] >= 1
        assert Counter(letter.message.id for letter in lab.dlq(source).letters(state=None)) == Counter(LETTERS)
        depth = lab.broker(source).depth(source)
        assert depth.empty, f"something is left: {depth}"

    sweep(lab, "consume", prepare, consume, check)


def test_a_consumer_killed_at_any_line_of_a_pause_loses_nothing_and_charges_nobody(lab: Lab) -> None:
    lab.needs(SURVIVES)
    effects, messages = Effects(lab.folder), 6

    def prepare(source: str) -> None:
        effects.clear()
        given.publish(lab.broker(source), given.messages(source, messages))

    def pause_for_a_probe(source: str) -> None:
        broker = lab.broker(source)
        first, running, *unstarted = pausing.taken(broker, 4, source=source)
        effects.add(f"done {first.id}")
        broker.settle(Settlement(gone=[first]))  # from now on another one is read ahead in its place
        pausing.pause(broker, unstarted, source)
        (probe,) = pausing.taken(broker, 1, source=source)
        effects.add(f"done {running.id}")
        broker.settle(Settlement(gone=[running], kept=[Kept(probe, probe.counters)]))
        pausing.resume(broker, source)
        broker.close()

    def check(source: str) -> None:
        attempts: list[int] = []

        def handle(payload: object, delivery: Delivery) -> None:
            effects.add(f"done {delivery.id}")
            attempts.append(delivery.attempt)

        drained(given.consumer(lab.app(), source, handle))
        counted = effects.counted()
        assert len(counted) == messages, f"Lost: {counted}"
        assert max(counted.values()) <= 2, "without atomic steps a kill leaves a message and its copy, and no more"
        assert set(attempts) <= {1}
        assert lab.dlq(source).count() == 0
        assert lab.broker(source).depth(source).empty

    sweep(lab, "pause", prepare, pause_for_a_probe, check)


def test_a_publisher_killed_at_any_line_has_sent_all_of_a_batch_or_nothing(lab: Lab) -> None:
    lab.needs(SURVIVES | Capability.EXACT_DEPTH)

    def publish(source: str) -> None:
        batch = [*given.messages(source, 3), *given.messages(f"{source}-too", 2), *given.messages(source, 2, delay=3600)]
        lab.broker(source).publish(batch)

    def check(source: str) -> None:
        broker = lab.broker(source)
        found = (broker.depth(source), broker.depth(f"{source}-too"))
        assert found in ((Depth(), Depth()), (Depth(ready=3, delayed=2), Depth(ready=2)))

    def prepare(source: str) -> None:
        """Tables and the like are there, which only the first publish would create. The sources are not."""
        lab.broker("others")

    sweep(lab, "publish", prepare, publish, check)


def test_a_replay_killed_at_any_line_loses_no_letter_and_sends_none_twice(lab: Lab) -> None:
    lab.needs(SURVIVES)
    replays = {"all": lambda source: lab.dlq(source).replay_all(), "one": lambda source: lab.dlq(source).replay_one()}
    for name, replay in replays.items():
        sweep(lab, name, lambda source: _four_letters(lab, source), replay, lambda source: _each_is_sent_once(lab, source))


def test_a_discard_killed_at_any_line_loses_no_letter_and_sends_none(lab: Lab) -> None:
    lab.needs(SURVIVES | Capability.BROWSE)

    def discard(source: str) -> None:
        dlq = lab.dlq(source)
        dlq.discard(dlq.peek()[1].id)

    def check(source: str) -> None:
        states = [letter.state for letter in lab.dlq(source).letters(state=None)]
        assert states in (["dead"] * 4, ["dead", "discarded", "dead", "dead"])
        assert lab.broker(source).depth(source).empty

    sweep(lab, "discard", lambda source: _four_letters(lab, source), discard, check)


def test_a_purge_killed_at_any_line_sends_no_letter_and_can_be_finished(lab: Lab) -> None:
    lab.needs(SURVIVES)

    def check(source: str) -> None:
        dlq = lab.dlq(source)
        left = dlq.count()
        assert dlq.purge().purged == left
        assert list(dlq.letters(state=None)) == []
        assert lab.broker(source).depth(source).empty

    sweep(lab, "purge", lambda source: _four_letters(lab, source), lambda source: lab.dlq(source).purge(), check)


def test_a_collector_killed_at_any_line_loses_no_letter_and_keeps_none_twice(lab: Lab) -> None:
    lab.needs(SURVIVES)

    def check(source: str) -> None:
        _collect(lab, source)
        assert lab.letters(source).count() == 0
        with closing(_in_store(lab, source)) as letters:
            assert sorted(letter.body for letter in letters.browse(state=None)) == [b"0", b"1", b"2", b"3"]
            assert letters.count() == 4
        assert lab.broker(source).depth(source).empty

    sweep(lab, "collect", lambda source: _four_letters(lab, source), lambda source: _collect(lab, source), check)


def test_a_collector_of_a_dlq_of_others_killed_at_any_line_loses_no_letter_and_marks_what_may_be_double(lab: Lab) -> None:
    lab.needs(SURVIVES)
    bodies = [b"0", b"1", b"2", b"3"]
    names: dict[str, str] = {}

    def prepare(source: str) -> None:
        names[source] = lab.fill_a_dlq_of_others(f"{source}-lost", bodies)

    def collect(source: str) -> None:
        with closing(_taken_from(lab, names[source])) as letters, letters.one_look():
            pass

    def check(source: str) -> None:
        found: list[StoredLetter] = []

        def is_whole() -> bool:
            """Some brokers give back what a killed one had taken out only after a while."""
            collect(source)
            with closing(_taken_from(lab, names[source])) as letters:
                stored = letters.store.page(order=Order.ARRIVAL, limit=1_000).letters
                found[:] = [each for each in stored if each.place == names[source]]
                return letters.count() == len(found) >= len(bodies)

        wait_until(is_whole, lambda: "A letter is lost, or waits in the DLQ for ever")
        assert sorted(each.letter.body for each in found if each.duplicate_of is None) == bodies

    sweep(lab, "collect-others", prepare, collect, check)


def test_a_replay_from_the_store_killed_at_any_line_loses_no_letter(lab: Lab) -> None:
    lab.needs(SURVIVES)

    def prepare(source: str) -> None:
        _four_letters(lab, source)
        _collect(lab, source)

    def replay(source: str) -> None:
        with closing(_in_store(lab, source)) as letters:
            letters.replay([letter.id for letter in letters.browse()])

    def check(source: str) -> None:
        replay(source)
        received: list[bytes] = []

        def handle(payload: bytes) -> None:
            received.append(payload)

        drained(given.consumer(lab.app(), source, handle))
        counted = Counter(received)
        assert sorted(counted) == [b"0", b"1", b"2", b"3"]
        assert max(counted.values()) <= 2, "a kill between sending and noting it repeats one batch, and no more"
        with closing(_in_store(lab, source)) as letters:
            assert [letter.state for letter in letters.browse(state=None)] == ["replayed"] * 4

    sweep(lab, "replay-stored", prepare, replay, check)


def _in_store(lab: Lab, source: str) -> CollectedLetters:
    letters = letters_of(lab.url, f"sqlite:///{lab.folder}/letters.db", source)
    assert isinstance(letters, CollectedLetters)
    return letters


def _taken_from(lab: Lab, dlq: str) -> CollectedLetters:
    letters = letters_at(lab.url, f"sqlite:///{lab.folder}/letters.db", dlq)
    assert isinstance(letters, CollectedLetters)
    return letters


def _collect(lab: Lab, source: str) -> None:
    with closing(_in_store(lab, source)) as letters, letters.one_look():
        pass


def _publish_one_of_each(lab: Lab, source: str) -> None:
    """One message for each way through the flow, the first of them left behind by a consumer that vanished."""
    broker = lab.broker(source)
    broker.publish([Outgoing("returned", source, b"{}")])
    broker.fetch(source, 1)
    broker.close()
    bodies = {**dict.fromkeys(MESSAGES, b"{}"), "undecodable": b"\xff{"}
    lab.broker(source).publish([Outgoing(id_, source, body) for id_, body in bodies.items()])


def _consumer(lab: Lab, source: str, effects: Effects) -> App:
    def handle(payload: object, delivery: Delivery) -> None:
        effects.add(f"start {delivery.id}")
        match delivery.id:
            case "failing":
                raise ConnectionError("never works")
            case "flaky" if delivery.attempt == 1:
                raise ConnectionError("works the second time")
            case "poison":
                raise ValueError("cannot work")
            case "discarded":
                raise Discard("not wanted")
        effects.add(f"done {delivery.id}")

    return given.consumer(lab.app(), source, handle, max_attempts=LIMIT, backoff=Backoff.immediate())


def _four_letters(lab: Lab, source: str) -> None:
    given.dead_letters(lab, source, [b"0", b"1", b"2", b"3"])


def _each_is_sent_once(lab: Lab, source: str) -> None:
    """Those that were sent are in the source, each once; the others still wait, and a second replay sends just them."""
    dlq, bodies = lab.dlq(source), [b"0", b"1", b"2", b"3"]
    received: list[bytes] = []

    def handle(payload: bytes) -> None:
        received.append(payload)

    app = given.consumer(lab.app(), source, handle)
    drained(app)
    waiting = [letter.body for letter in dlq.letters()]
    assert sorted(received + waiting) == bodies
    dlq.replay_all()
    drained(app)
    assert sorted(received) == bodies
    assert [letter.state for letter in dlq.letters(state=None)] == ["replayed"] * 4
