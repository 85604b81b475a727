"""The permissions that docs/nats.md lists are enough for everything, and what is not permitted is told."""

import json
import re
from pathlib import Path

import pytest

from tests.servers_plugin import private_or_skip
from unpoison.app import App
from unpoison.backoff import Backoff
from unpoison.errors import BrokerUnavailable
from unpoison.message import Delivery
from unpoison.testing import given
from unpoison.testing.running import drained

DOCS = Path(__file__).parents[2] / "docs" / "nats.md"


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
    with private_or_skip("nats") as server:
        server.stop()
        users = f"[{consumer}, {stranger_user}, {{ user: test, password: test }}]"
        server.start({"accounts": f"{{ shop: {{ jetstream: enabled, users: {users} }} }}"})
        yield server


def url_of(server, user: str) -> str:
    return f"nats://{user}:{user}@127.0.0.1:{server.port}?ack_wait=1.5"


def test_they_are_enough_to_publish_retry_delay_dead_letter_and_replay(server):
    app = App(url_of(server, "shop"))
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
