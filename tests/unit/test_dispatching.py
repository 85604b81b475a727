"""Which waiting message goes to which worker? With workers that only keep what they are given."""

from types import SimpleNamespace

import pytest

from unpoison.decide.options import ConsumerOptions
from unpoison.model.backoff import Limits
from unpoison.model.message import Delivery
from unpoison.worker.marks import BATCHES
from unpoison.workers.dispatching import Dispatch, Pace
from unpoison.workers.watch import Watch


class PooledWorker:
    def __init__(self, consumer, uses=0):
        self.consumer, self.uses = consumer, uses
        self.ready, self.retiring, self.is_solo, self.takes = True, False, False, True
        self.given, self.assignments = [], self

    is_able = property(lambda self: self.ready and not self.retiring)

    def give(self, deliveries):
        if self.takes:
            self.given.append([delivery.id for delivery in deliveries])
        return self.takes

    def held(self):
        return sum(map(len, self.given))

    def free(self):
        options = self.consumer.options
        return options.lanes - self.held() if options.is_async or options.threads > 1 else BATCHES - len(self.given)

    def running(self):
        return ()

    def end(self):
        self.uses += self.held()
        self.given = []


def stage(workers, **options):
    """A dispatch with so many workers of which all but the last have run before."""
    consumer = SimpleNamespace(options=ConsumerOptions("orders", Limits(), **options))
    watch, pace = Watch(consumer.options), Pace(consumer.options)
    dispatch = Dispatch(consumer.options, pace, watch, None)
    return dispatch, [PooledWorker(consumer, uses=1) for _ in range(workers - 1)] + [PooledWorker(consumer)]


def deliveries(name, count):
    return [Delivery(n, "orders", f"{name}{n}", b"") for n in range(count)]


def test_batches_go_to_workers_that_have_run_before_and_the_spare_one_stays_unused():
    dispatch, workers = stage(3, concurrency=2)
    dispatch.queue += deliveries("m", 6)
    dispatch.hand_out(workers)
    assert [worker.held() for worker in workers] == [4, 2, 0]


def test_one_that_needs_a_fresh_worker_gets_the_spare_one_as_soon_as_there_is_a_place():
    dispatch, (first, second, spare) = stage(3, concurrency=2)
    dispatch.queue += deliveries("m", 8)
    dispatch.hand_out([first, second, spare])
    dispatch.fresh += deliveries("f", 1)
    dispatch.queue += deliveries("n", 20)
    dispatch.hand_out([first, second, spare])
    assert not spare.given, "two are at work, and two is the limit"
    assert first.held() + second.held() == 8, "one of them must come to its end first"
    second.end()
    dispatch.hand_out([first, second, spare])
    assert spare.given == [["f0"]]
    assert spare.is_solo
    first.end()
    dispatch.hand_out([first, second, spare])
    assert bool(first.given) != bool(second.given), "the other place is for batches"


def test_batches_always_keep_a_place_however_many_need_a_fresh_worker():
    dispatch, workers = stage(5, concurrency=3)
    workers += [PooledWorker(workers[0].consumer) for _ in range(5)]
    dispatch.fresh += deliveries("f", 10)
    dispatch.queue += deliveries("m", 100)
    for _ in range(10):
        dispatch.hand_out(workers)
    assert sum(worker.is_solo for worker in workers) == 2
    assert sum(worker.held() > 0 and not worker.is_solo for worker in workers) == 1


def test_with_a_single_place_batches_and_fresh_ones_take_turns():
    dispatch, (worker, spare) = stage(2, concurrency=1)
    dispatch.fresh += deliveries("f", 3)
    dispatch.queue += deliveries("m", 100)
    turns = []
    for _ in range(6):
        dispatch.hand_out([worker, spare])
        turns += [ids[0][0] for worker in (worker, spare) for ids in worker.given[:1]]
        worker.end()
        if spare.given:
            spare = PooledWorker(spare.consumer)
    assert turns == ["f", "m", "f", "m", "f", "m"]


@pytest.mark.parametrize("options", [{"is_async": True, "concurrency": 4}, {"threads": 4, "concurrency": 4}])
def test_with_lanes_a_fresh_worker_starts_beside_the_running_one_within_the_concurrency(options):
    dispatch, (worker, spare) = stage(2, **options)
    dispatch.queue += deliveries("m", 4)
    dispatch.hand_out([worker, spare])
    assert (worker.held(), spare.held()) == (4, 0)
    dispatch.fresh += deliveries("f", 1)
    dispatch.queue += deliveries("n", 4)
    dispatch.hand_out([worker, spare])
    assert spare.held() == 0, "four run already"
    worker.given = [["m1"], ["m2"], ["m3"]]
    dispatch.hand_out([worker, spare])
    assert (worker.held(), spare.given) == (3, [["f0"]])
    worker.given = [["m1"]]
    dispatch.hand_out([worker, spare])
    assert worker.held() == 3, "batches do not wait for the fresh one"


def test_a_worker_that_is_to_leave_gets_nothing_and_another_takes_its_place():
    dispatch, (leaving, spare) = stage(2, is_async=True, concurrency=4)
    leaving.given, leaving.retiring = [["slow"]], True
    dispatch.queue += deliveries("m", 10)
    dispatch.hand_out([leaving, spare])
    assert (leaving.held(), spare.held()) == (1, 3)


def test_what_a_worker_does_not_take_waits_on():
    dispatch, (worker, spare) = stage(2, concurrency=1)
    worker.takes = spare.takes = False
    dispatch.queue += deliveries("m", 3)
    dispatch.fresh += deliveries("f", 1)
    dispatch.hand_out([worker, spare])
    assert [delivery.id for delivery in dispatch.take_all()] == ["f0", "m0", "m1", "m2"]
    assert len(dispatch) == 0
