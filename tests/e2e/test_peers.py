"""Do the comparisons with other libraries measure, kill and look as they say? With unpoison in a peer's place, and with huey."""

import sqlite3

import msgspec
import pytest

from bench.peers import brokers, draining, killing, measuring, remains, tables, workers
from bench.peers.kit import work
from bench.peers.results import Cell
from bench.peers.setups import known
from bench.peers.workers import WorkerFailed


def kill_setup(name, **changes):
    [setup] = [setup for setup in known().kill if setup.name == name]
    return msgspec.structs.replace(setup, **changes)


@pytest.fixture(autouse=True)
def one_try(monkeypatch):
    """Nothing is measured here: a busy machine is no reason to run it again."""
    monkeypatch.setattr("bench.harness.rounds.TRIES", 1)


@pytest.fixture
def sqlite():
    with brokers.running("sqlite") as broker:
        yield broker


def test_a_full_queue_is_drained_and_nothing_is_left(sqlite):
    cell = draining.drained(draining.setup("sqlite"), sqlite, 30_000)
    assert 0 < cell.messages < 30_000  # the first ones begin the clock
    assert cell.seconds > 0
    assert cell.left == 0


def test_messages_that_nobody_acknowledged_are_counted(sqlite):
    """A worker that handles everything and then forgets to say so."""
    forgets = 'python -c "import work; [work.handle(work.order(n)) for n in range(50)]; import time; time.sleep(60)"'
    setup = msgspec.structs.replace(draining.setup("sqlite"), worker=forgets)
    assert draining.drained(setup, sqlite, 50).left == 50


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (
            "python -c \"raise SystemExit('no such broker')\"",
            "the worker has ended; 0 messages were handled. It wrote:\nno such broker",
        ),
        (
            'python -c "import work; [work.handle(work.order(n // 2)) for n in range(40)]; import time; time.sleep(60)"',
            "20 of 20 messages were handled more than once though nothing had failed",
        ),
    ],
    ids=["ends", "twice"],
)
def test_a_worker_that_fails_is_no_measurement(sqlite, worker, says):
    setup = msgspec.structs.replace(draining.setup("sqlite"), worker=worker)
    with pytest.raises(WorkerFailed) as caught:
        draining.drained(setup, sqlite, 20)
    assert says in str(caught.value)


@pytest.mark.long
def test_unpoison_passes_the_kill_test(sqlite):
    found = killing.put_to_the_test(kill_setup("unpoison-sqlite", silence=6.0), sqlite)
    assert tables.is_flawless([found])
    assert 3 <= found.poison_ran <= 4
    assert found.restarts == found.poison_ran
    assert found.places["garbage"] == "dead-letter queue"


def test_a_worker_that_always_dies_is_given_up(sqlite, monkeypatch):
    monkeypatch.setattr(killing, "RESTARTS", 3)
    dies = "python -c \"import work; work.handle({'name': 'poison'})\""
    found = killing.put_to_the_test(kill_setup("unpoison-sqlite", worker=dies), sqlite)
    assert (found.poison_ran, found.restarts, found.end) == (4, 3, "loops")
    assert set(found.places.values()) == {"in the queue"}


@pytest.mark.long
def test_cost_and_memory_of_a_queue_are_found(sqlite):
    said = []
    [small, large] = draining.grown(sqlite, 0.0, said.append, largest=10_000)
    assert (small.messages, large.messages) == (1_000, 10_000)
    assert large.seconds > 0
    assert large.cpu > 0
    assert 10_000_000 < large.memory < 2_000_000_000


def test_a_run_that_was_interrupted_goes_on_where_it_was(monkeypatch, tmp_path):
    taken = []

    def side(name):
        def take():
            if taken.count(name) == 1 and name == "unpoison" and "interrupted" not in taken:
                taken.append("interrupted")
                raise KeyboardInterrupt
            taken.append(name)
            return Cell(10, 1.0, 0.1, 0.1)

        return take

    monkeypatch.setattr(measuring, "sides_of", lambda *_: {name: side(name) for name in ("raw", "unpoison", "huey-sqlite")})
    monkeypatch.setattr(workers, "make", lambda *_: None)
    unfinished, asked = tmp_path / "unfinished.json", measuring.Asked(rounds=2)
    with pytest.raises(KeyboardInterrupt):
        measuring.measured("sqlite", asked, unfinished, lambda _: None)
    found = measuring.measured("sqlite", asked, unfinished, lambda _: None)
    assert {name: len(cells) for name, cells in found.cells.items()} == {"raw": 2, "unpoison": 2, "huey-sqlite": 2}
    # Backwards in the second round, and nothing twice.
    assert taken == ["raw", "unpoison", "huey-sqlite", "huey-sqlite", "interrupted", "unpoison", "raw"]


def test_a_side_that_fails_twice_is_left_out_and_named(monkeypatch, tmp_path):
    def fails():
        raise WorkerFailed("huey-sqlite: the worker has ended\nlong story")

    sides = {"raw": lambda: Cell(10, 1.0, 0.1, 0.1), "huey-sqlite": fails}
    monkeypatch.setattr(measuring, "sides_of", lambda *_: sides)
    monkeypatch.setattr(workers, "make", lambda *_: None)
    found = measuring.measured("sqlite", measuring.Asked(rounds=1), tmp_path / "unfinished.json", lambda _: None)
    assert set(found.cells) == {"raw"}
    assert found.failed == {"huey-sqlite": "huey-sqlite: the worker has ended"}


def test_what_a_consumer_group_has_acknowledged_is_not_left(redis):
    url = redis.fresh()
    with redis.client(url) as client:
        client.xgroup_create("orders", "workers", "0", mkstream=True)
        for name in ("acknowledged", "pending", "waiting"):
            client.xadd("orders", {"data": name})
        [[_, read]] = client.xreadgroup("workers", "one", {"orders": ">"}, count=2)
        client.xack("orders", "workers", read[0][0])
        client.hset("job:1", mapping={"status": "failed", "data": "a job"})
    assert sorted(remains.found(redis, url)) == [
        ("job:1 (failed)", b"failed a job"),
        ("orders", b"pending"),
        ("orders", b"waiting"),
    ]


def test_rows_come_with_their_state(tmp_path):
    connection = sqlite3.connect(tmp_path / "queue.db")
    connection.execute("create table jobs (status text, body blob)")
    connection.execute("insert into jobs values ('failed', ?)", (b"\xff\xfe",))
    connection.commit()
    connection.close()
    [(place, entry)] = remains.found(None, f"sqlite:///{tmp_path}/queue.db")
    assert place == "jobs (failed)"
    assert remains.holds(entry, b"\xff\xfe")
    assert remains.meaning(place, {"jobs .failed.": "failed row"}) == "failed row"
    assert remains.waiting([(place, entry)], {"jobs .failed.": "failed row"}) == []


@pytest.mark.long
def test_a_peer_in_its_own_environment(sqlite):
    [setup] = [setup for setup in known().drain if setup.name == "huey-sqlite"]
    workers.make("huey", print)
    cell = draining.drained(setup, sqlite, 300)
    assert cell.left == 0
    found = killing.put_to_the_test(kill_setup("huey-sqlite", silence=5.0), sqlite)
    assert (found.poison_ran, found.places["poison"], found.healthy_ran) == (1, "gone", [1, 1, 1, 1, 1])


def test_orders_are_those_of_the_other_benchmarks():
    from bench.cases import orders  # noqa: PLC0415 - all cases come with it

    assert [work.order(number) for number in (0, 7, 12_345)] == [orders.order(number) for number in (0, 7, 12_345)]
    assert list(work.Orders(3)) == [work.order(number) for number in range(3)]
