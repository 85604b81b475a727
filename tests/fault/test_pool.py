"""What the pool of isolated workers promises the consumer, with real worker processes and no broker."""

import select
from types import SimpleNamespace

import pytest

from unpoison.flow.runnable import RunnableApp
from unpoison.model.message import Delivery
from unpoison.workers import pool as pool_module
from unpoison.workers.interface import Bell

APP = """
from unpoison import App
app = App("sqlite:///unused.db")

@app.consumer("orders", concurrency=1)
def handle(body: bytes) -> None:
    if body == b"bad":
        raise ValueError(body)
"""


@pytest.fixture
def bell():
    return Bell()


@pytest.fixture
def workers(tmp_path, monkeypatch, bell):
    (tmp_path / "pool_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    app = RunnableApp.from_reference("pool_shop:app", dict)
    workers = app.start_workers(app.consumers()[0], SimpleNamespace(inherited_fds=lambda: ()), bell).workers
    yield workers
    workers.close()
    app.close()


def is_ringing(bell):
    waiting = select.poll()
    waiting.register(bell.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def finish(workers, count):
    ended = 0
    while ended < count:
        workers.wait(1.0)
        ended += sum(len(one.deliveries) for one in workers.ended())


def speed_up(workers):
    """Until so quick that many messages may be in hand at once."""
    while workers.room() < 100:
        count = workers.room()
        workers.start([Delivery(n, "orders", str(n), b"1") for n in range(count)])
        finish(workers, count)


def test_collecting_results_does_not_swallow_the_word_that_there_is_something_new(workers, bell):
    bell.ring()
    workers.ended()
    assert is_ringing(bell), "the consumer would sleep although a message has come since it looked"
    workers.wait(60.0)
    assert not is_ringing(bell), "the consumer would never sleep"


def test_there_is_no_room_while_too_many_bytes_are_in_hand_and_room_again_afterwards(workers, monkeypatch):
    monkeypatch.setattr(pool_module, "HELD_BYTES", 1_000_000)
    speed_up(workers)
    large = [Delivery(n, "orders", str(n), bytes(400_000)) for n in range(3)]
    workers.start(large)
    assert workers.room() == 0
    finish(workers, len(large))
    assert workers.room() > 0


def test_workers_that_are_replaced_with_two_batches_in_hand_leave_the_rest_to_the_next_ones(workers):
    for turn in range(20):
        speed_up(workers)
        count = workers.room()
        workers.start([Delivery(n, "orders", f"{turn}-{n}", b"bad") for n in range(count)])
        failed = []
        while len(failed) < count:
            workers.wait(1.0)
            failed += [ended.deliveries[n].id for ended in workers.ended() for n in ended.failures]
        assert sorted(failed) == sorted(f"{turn}-{n}" for n in range(count))
        assert workers.running() == 0
