"""The permissions that docs/nats.md lists are enough for everything, and what is not permitted is told."""

import json
import os
import re
import signal
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers_plugin import private_or_skip
from unpoison import App
from unpoison.errors import BrokerUnavailable
from unpoison.flow import ending
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained

DOCS = Path(__file__).parents[3] / "docs" / "nats.md"


def documented(section: str) -> dict[str, list[str]]:
    """The block of the page that lists them."""
    text = DOCS.read_text().partition(section)[2]
    block = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert block, f"docs/nats.md has no list of permissions under {section}"
    lines = (line.partition(":") for line in block[1].splitlines() if ":" in line)
    return {kind.strip(): re.findall(r'"([^"]+)"', subjects) for kind, _, subjects in lines}


@pytest.fixture(scope="module")
def server():
    permissions = documented("## Permissions")
    assert set(permissions) == {"publish", "subscribe"}
    consumer = json.dumps({"user": "shop", "password": "shop", "permissions": permissions})
    stranger = {kind: [subject for subject in subjects if subject != "orders"] for kind, subjects in permissions.items()}
    stranger_user = json.dumps({"user": "stranger", "password": "stranger", "permissions": stranger})
    narrow = json.dumps({"user": "narrow", "password": "narrow", "permissions": documented("### With create=False")})
    with private_or_skip("nats") as server:
        server.stop()
        server.start(accounts(consumer, stranger_user, narrow))
        yield server


def accounts(*users: str) -> dict[str, str]:
    """Lines of the server's configuration: one account for all of them, with an administrator."""
    return {"accounts": f"{{ shop: {{ jetstream: enabled, users: [{', '.join(users)}, {{ user: test, password: test }}] }} }}"}


@contextmanager
def taken_away(server, *subjects: str):
    """The user shop may not publish to these for a while. Taken while the server runs, as an administrator would."""
    rights = documented("## Permissions")
    everything = {kind: {"allow": allowed} for kind, allowed in rights.items()}
    fewer = {**everything, "publish": {"allow": rights["publish"], "deny": list(subjects)}}
    try:
        reload(server, fewer)
        yield
    finally:
        reload(server, everything)


def reload(server, permissions: dict) -> None:
    loaded_at = server.http("/varz")["config_load_time"]
    server.configure(accounts(json.dumps({"user": "shop", "password": "shop", "permissions": permissions})))
    os.kill(server.server_process().pid, signal.SIGHUP)
    wait_until(lambda: server.http("/varz")["config_load_time"] != loaded_at, lambda: "The server did not read its configuration")


def url_of(server, user: str) -> str:
    return f"nats://{user}:{user}@127.0.0.1:{server.port}?ack_wait=30"


@pytest.mark.parametrize("user", ["shop", "narrow"])
def test_they_are_enough_to_publish_retry_delay_dead_letter_and_replay(server, user):
    """The narrow one finds everything made."""
    app = App(url_of(server, user), create=user == "shop")
    repaired, done = [], []

    def handle(number: int, delivery: Delivery) -> None:
        if number == 1 and delivery.attempt == 1:
            raise ConnectionError("not now")
        if number == 2 and not repaired:
            raise ValueError("never")
        done.append(number)

    given.consumer(app, "orders", handle, backoff=Backoff.fixed(0.1))
    app.publish_many("orders", range(3))
    app.publish("orders", 3, delay=0.2)
    tally = drained(app)["orders"]
    assert (tally.done, tally.dead) == (3, 1)
    repaired.append(True)
    app.dlq("orders").replay_all()
    drained(app)
    assert sorted(done) == [0, 1, 2, 3]
    app.dlq("orders").purge()
    assert list(app.dlq("orders").letters(state=None)) == []
    app.close()


def test_what_is_not_permitted_is_told_with_its_subject(server):
    app = App(url_of(server, "stranger"))
    with pytest.raises(BrokerUnavailable, match=r'(?is)permi.*"orders"'):
        app.publish("orders", 1)
    app.close()


TAKEN = {
    "retries and letters": ["unpoison.>"],
    "pulling": ["$JS.API.CONSUMER.MSG.NEXT.>"],
    "looking": ["$JS.API.CONSUMER.INFO.>"],
    "acknowledging": ["$JS.ACK.>"],
    "everything": [">"],
}


@pytest.mark.parametrize("subjects", TAKEN.values(), ids=TAKEN)
def test_a_right_that_is_taken_away_pauses_the_source_and_charges_nobody(server, monkeypatch, subjects):
    attempts: dict[int, list[tuple[int, bool]]] = {}
    started, may_end = threading.Event(), threading.Event()

    def handle(number: int, delivery: Delivery) -> None:
        attempts.setdefault(number, []).append((delivery.attempt, delivery.returned))
        if len(attempts[number]) == 1:
            started.set()
            assert may_end.wait(60)
            raise ConnectionError("not now")

    monkeypatch.setattr(ending, "RETRY_BROKER", (0.1,))
    app = App(url_of(server, "shop"), create=False)
    app.publish("orders", 1)
    given.consumer(app, "orders", handle, backoff=Backoff.immediate(), isolation="thread", concurrency=1)
    with Journal() as journal, Running(app):
        assert started.wait(30)
        with taken_away(server, *subjects):
            may_end.set()
            journal.wait_for("pause")
        wait_until(lambda: len(attempts[1]) == 2, lambda: f"It was started {attempts}")
        journal.wait_for("resume")
    assert "docs/nats.md" in journal.of("pause")[0]
    assert attempts == {1: [(1, False), (2, False)]}
    assert app.dlq("orders").count() == 0
    app.close()
