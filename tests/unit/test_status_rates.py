"""Are the rates of `unpoison status --watch` those between the looks, whoever tells the counts?"""

import pytest

from unpoison.cli.source_status import InStore, SourceStatus
from unpoison.cli.status_rates import Rates, SourceRates
from unpoison.port.at_broker import AtBroker
from unpoison.port.broker import Depth
from unpoison.store.port import ConsumerSign


def consumer(done=0, failed=0, dead=0, name="web-1:7", started=0.0):
    return ConsumerSign(name, "orders", None, started, 0.0, "running", done, failed, dead)


def look(now, *consumers, ready=0, dead=0, store=True, broker=True):
    there = AtBroker(Depth(ready=ready, delayed=1, leased=2, dead=dead)) if broker else None
    return [SourceStatus("orders", now, there, "", InStore((), (), consumers) if store else None)]


def rates(*looks):
    made = Rates()
    for each in looks:
        made.add(each)
    return made.of("orders")


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([look(0.0, consumer())], SourceRates()),
        ([look(0.0, consumer(10, 1, 0)), look(2.0, consumer(30, 4, 1), ready=10)], SourceRates(10.0, 1.5, 0.5, 5.0)),
        ([look(0.0, store=False), look(4.0, store=False, dead=2, ready=8)], SourceRates(None, None, 0.5, 2.0)),
        ([look(0.0, store=False, dead=5), look(4.0, store=False)], SourceRates(None, None, 0.0, 0.0)),  # sent again
        ([look(0.0, broker=False), look(4.0, broker=False)], SourceRates()),
        ([look(0.0, consumer(50)), look(2.0, consumer(4, started=1.0))], SourceRates(2.0, 0.0, 0.0, 0.0)),  # started again
        ([look(0.0), look(2.0, consumer(500, started=-60.0))], SourceRates(0.0, 0.0, 0.0, 0.0)),  # not seen before
        ([look(0.0, consumer()), look(2.0, consumer(2), consumer(8, name="b:2", started=1.0))], SourceRates(5.0, 0.0, 0.0, 0.0)),
        ([look(0.0, consumer()), [], look(2.0, consumer(2))], SourceRates(1.0, 0.0, 0.0, 0.0)),  # nobody answered
    ],
)
def test_what_two_looks_tell(looks, expected):
    assert rates(*looks) == expected


def test_only_the_last_seconds_count():
    assert rates(*(look(float(at), consumer(min(at, 20) * 100)) for at in range(0, 40, 2))).done == 0.0
    assert rates(*(look(float(at), consumer(at * 100)) for at in range(0, 40, 2))).done == pytest.approx(100.0)
