"""A hundred thousand messages wait for a dependency that is down, on a broker that pays for each return with a copy.

Ten minutes by the clock for each broker. WAITING_MESSAGES says for how many messages, if not for 100,000.
"""

import os
import socket
import threading
import time
from collections import Counter

import pytest

from unpoison import App
from unpoison.brokers import broker_for
from unpoison.flow import run
from unpoison.port.broker import Broker, Settlement
from unpoison.testing.running import Running

pytestmark = [pytest.mark.proof, pytest.mark.timeout(3_600)]

MESSAGES = int(os.environ.get("WAITING_MESSAGES", "100000"))
MINUTES = 10.0
OTHERS_EACH_SECOND = 50
PAGE = 1_000


class Copies:
    """How often each message was put off within ten minutes of the first time, by a consumer whose broker is `counted`."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self._since: dict[str, float] = {}

    def counted(self, url: str) -> Broker:
        broker = broker_for(url)
        settle = broker.settle

        def counting(settlement: Settlement):
            now = time.monotonic()
            put_off = [kept.delivery.id for kept in settlement.kept if kept.after > 0]
            self.of.update(each for each in put_off if now - self._since.setdefault(each, now) <= MINUTES * 60)
            return settle(settlement)

        broker.settle = counting
        return broker


@pytest.mark.parametrize("server", ["rabbitmq_4", "nats", "kafka", "elasticmq"])
def test_each_of_a_hundred_thousand_that_wait_costs_five_copies_in_ten_minutes_at_the_most(request, monkeypatch, server):
    url = request.getfixturevalue(server).fresh()
    copies, handled = Copies(), Counter()
    monkeypatch.setattr(run, "broker_for", copies.counted)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # and closed: nobody listens there
        down = taken.getsockname()
    app = App(url)

    @app.consumer("orders", isolation="inline")
    def handle(body: bytes) -> None:
        if body == b"needs it":
            handled["failed"] += 1
            socket.create_connection(down)
        handled["good"] += 1

    for _ in range(MESSAGES // PAGE):  # others among them, or the source would be paused, and nothing would come back at all
        app.publish_many("orders", ([b"needs it"] * 5 + [b"does not"]) * (PAGE // 5))
    over = threading.Event()
    others = threading.Thread(target=_publish_others, args=(app, over), daemon=True)
    with Running(app) as running:
        others.start()
        all_put_off = None
        while all_put_off is None or time.monotonic() - all_put_off < MINUTES * 60:
            over.wait(30)
            if all_put_off is None and len(copies.of) == MESSAGES:
                all_put_off = time.monotonic()
            print(f"{server}: {dict(handled)}, copies {sorted(Counter(copies.of.values()).items())}", flush=True)
        over.set()
        others.join(60)
        tally = running.run.tallies()["orders"]
    app.close()
    assert tally.dead == 0
    most = max(copies.of.values())
    print(f"{server}: at most {most} copies, {copies.of.total() / MESSAGES:.2f} on average, {handled['failed']:,} starts")
    assert most <= 5


def _publish_others(app: App, over: threading.Event) -> None:
    while not over.wait(1.0):
        app.publish_many("orders", [b"does not"] * OTHERS_EACH_SECOND)
