"""The policy in docs/sqs.md names every right that unpoison needs, and none that it does not."""

import json
import re
from pathlib import Path

import pytest

from tests.fault.scenes import pause_of_a_lost_right
from unpoison import App
from unpoison.errors import BrokerUnavailable, ConfigError, Refusal
from unpoison.testing import given
from unpoison.testing.running import drained

ROOT = Path(__file__).parents[3]
SOURCES = list((ROOT / "src/unpoison/brokers/sqs").rglob("*.py"))
ASKED = re.compile(r'\bask\(\s*"(\w+)"')
TEMPLATE = re.compile(r"```json\n(.*?)```", re.DOTALL)


def page() -> str:
    return (ROOT / "docs/sqs.md").read_text()


def allowed() -> set[str]:
    """The actions in the policy."""
    found: set[str] = set()
    for statement in json.loads(TEMPLATE.search(page()).group(1))["Statement"]:
        actions = statement["Action"]
        found.update([actions] if isinstance(actions, str) else actions)
    return found


def action(operation: str) -> str:
    """What somebody must be allowed to do for this operation of the client. A batch needs the right to do it once."""
    return "sqs:" + "".join(word.capitalize() for word in operation.removesuffix("_batch").split("_"))


def test_every_operation_in_the_code_is_allowed_and_nothing_else_is():
    texts = [path.read_text() for path in SOURCES]
    operations = {name for text in texts for name in ASKED.findall(text)}
    assert sum(text.count(".ask(") for text in texts) == sum(len(ASKED.findall(text)) for text in texts), "one has no plain name"
    assert {action(name) for name in operations} == allowed()


@pytest.fixture
def lab(proxied_lab):
    return proxied_lab


def only(*actions: str):
    """For the proxy: refuse what these rights do not allow."""
    return lambda operation, queue: f"sqs:{operation.removesuffix('Batch')}" not in actions


def test_who_only_publishes_needs_no_more_than_the_page_says(lab):
    lab.broker("orders")
    told = re.search(r"only publishes\s+needs (.*?),\s+once", page(), re.DOTALL).group(1)
    rights = [f"sqs:{name}" for name in re.findall(r"`(\w+)`", told)]
    lab.proxy.denies = only(*rights)
    lab.app().publish("orders", 1)
    for right in rights:
        lab.proxy.denies = only(*(each for each in rights if each != right))
        with pytest.raises((BrokerUnavailable, ConfigError), match="not authorized"):
            lab.app().publish("orders", 2)


def test_with_the_rights_of_the_page_a_message_lives_dies_and_is_sent_again(lab):
    lab.proxy.denies = only(*allowed())
    given.dead_letters(lab, "orders", [b"1"])
    dlq = lab.dlq("orders")
    assert dlq.replay_all().count == 1
    handled: list[bytes] = []
    drained(given.consumer(lab.app(), "orders", handled.append, schema=bytes))
    assert handled == [b"1"]
    assert {f"sqs:{operation.removesuffix('Batch')}" for operation, _ in lab.proxy.seen} <= allowed()


def test_a_queue_that_we_may_not_create_again_is_told_apart_from_one_that_is_not_there(lab):
    broker = lab.broker("orders")
    lab.queue("orders").delete()
    lab.proxy.denies = lambda operation, queue: operation == "CreateQueue"
    refused = broker.publish(given.messages("orders", 11)).refused
    assert [refused[number].refusal for number in range(11)] == [Refusal.NOT_PERMITTED] * 10 + [Refusal.NOT_SENT]


@pytest.mark.parametrize("operation", ["SendMessage", "DeleteMessage", "ReceiveMessage", "GetQueueAttributes"])
def test_a_right_that_is_taken_away_pauses_the_source_and_charges_nobody(lab, monkeypatch, operation):
    """By a proxy: no server here knows rights."""

    def take():
        lab.proxy.denies = lambda asked, queue: asked.removesuffix("Batch") == operation

    def give():
        lab.proxy.denies = lambda asked, queue: False

    lab.broker("orders").close()
    app = App(lab.url, create=False)
    assert "docs/sqs.md" in pause_of_a_lost_right(monkeypatch, app, lambda: app.publish("orders", 1), take, give)
    assert lab.dlq("orders").count() == 0
