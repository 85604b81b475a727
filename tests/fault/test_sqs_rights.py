"""The policy in docs/sqs.md names every right that unpoison needs, and none that it does not."""

import json
import re
import threading
from pathlib import Path

import pytest

from tests.contract.sqs_lab import SQSLab
from unpoison import App
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.flow import ending
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained

ROOT = Path(__file__).parents[2]
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
def lab(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, with_proxy=True) as lab:
        yield lab


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


@pytest.mark.parametrize("operation", ["SendMessage", "DeleteMessage", "ReceiveMessage", "GetQueueAttributes"])
def test_a_right_that_is_taken_away_pauses_the_source_and_charges_nobody(lab, monkeypatch, operation):
    """By a proxy: no server here knows rights."""
    attempts: list[tuple[int, bool]] = []
    started, may_end = threading.Event(), threading.Event()

    def handle(number: int, delivery: Delivery) -> None:
        attempts.append((delivery.attempt, delivery.returned))
        if len(attempts) == 1:
            started.set()
            assert may_end.wait(60)
            raise ConnectionError("not now")

    monkeypatch.setattr(ending, "RETRY_BROKER", (0.1,))
    lab.broker("orders").close()
    app = App(lab.url, create=False)
    given.consumer(app, "orders", handle, backoff=Backoff.immediate(), isolation="thread", concurrency=1)
    app.publish("orders", 1)
    with Journal() as journal, Running(app):
        assert started.wait(30)
        lab.proxy.denies = lambda asked, queue: asked.removesuffix("Batch") == operation
        may_end.set()
        journal.wait_for("pause")
        lab.proxy.denies = lambda asked, queue: False
        wait_until(lambda: len(attempts) == 2, lambda: f"It was started {attempts}")
        journal.wait_for("resume")
    app.close()
    assert "docs/sqs.md" in journal.of("pause")[0]
    assert attempts == [(1, False), (2, False)]
    assert lab.dlq("orders").count() == 0
