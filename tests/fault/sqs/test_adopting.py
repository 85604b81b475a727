"""Queues that were there before: doctor looks at them, create=False names all that is missing, and nobody makes them anew."""

import json
import os
import subprocess
import sys

import pytest

from tests.contract.sqs_lab import SQSLab
from unpoison import App
from unpoison.brokers import findings_for
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port.broker import Settlement
from unpoison.testing import given
from unpoison.testing.running import drained


@pytest.fixture
def lab(tmp_path, moto):
    with SQSLab(moto, tmp_path, with_proxy=True) as lab:
        yield lab


def adopted(lab, source: str = "orders", most: int = 3, **attributes: str):
    """A queue with one message, as another team has made it: its own DLQ, after a few receives."""
    ending = ".fifo" if source.endswith(".fifo") else ""
    kind = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if ending else {}
    lab.queue(f"theirs{ending}").create(**kind)
    arn = lab.queue(f"theirs{ending}").attributes()["QueueArn"]
    queue = lab.queue(source)
    queue.create(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": most}), **kind, **attributes)
    queue.send("1", **({"MessageGroupId": "a"} if ending else {}))
    return queue


def names_of(lab) -> list[str]:
    queue = lab.queue("")
    return sorted(queue.client.list_queues(QueueNamePrefix=queue.name).get("QueueUrls", []))


def test_doctor_looks_at_a_queue_that_unpoison_has_never_used_and_changes_nothing(lab):
    queue = adopted(lab, MessageRetentionPeriod="3600")
    before = names_of(lab), queue.attributes()
    found = {finding.name: finding for finding in findings_for(lab.url, ["orders"])}
    assert list(found) == ["queues-missing", "redrive-too-low", "redrive-elsewhere", "short-retention"]
    assert found["redrive-too-low"].loses
    assert all(f"-orders-{name}" in found["queues-missing"].problem for name in ("dlq", "suspects", "replays", "starts"))
    assert "-orders-dlq" in found["redrive-too-low"].fix
    assert (names_of(lab), queue.attributes()) == before
    (message,) = queue.received(VisibilityTimeout=0)
    assert message["Attributes"]["ApproximateReceiveCount"] == "1", "doctor has received it"


def test_doctor_needs_no_right_to_list_queues_for_sources_that_are_named(lab):
    adopted(lab)
    lab.proxy.denies = lambda operation, queue: operation == "ListQueues"
    names = [finding.name for finding in findings_for(lab.url, ["orders", "ordres"])]
    assert names == ["source-missing", "queues-missing", "redrive-too-low", "redrive-elsewhere"]


def test_with_create_false_all_that_is_missing_is_one_error_and_nothing_is_made(lab):
    adopted(lab, most=1000)
    before = names_of(lab)
    app = given.consumer(App(lab.url, create=False), "orders", print, schema=int)
    for use in (lambda: drained(app), lambda: app.publish("orders", 1), lambda: app.dlq("orders").count()):
        with pytest.raises(ConfigError, match=r"lacks 6 queues, and create=False") as caught:
            use()
        assert all(str(caught.value).count(f"-orders-{name}") for name in ("dlq", "suspects", "replays", "dlq-history", "starts"))
    assert names_of(lab) == before
    app.close()


AWS = """#!{python} -IS
import json, os, sys

arguments = sys.argv[1:]
given = dict(zip(arguments, arguments[1:]))
if "create-queue" in arguments:
    with open(os.environ["WISHES"], "a") as wishes:
        print(json.dumps([given["--queue-name"], json.loads(given["--attributes"])]), file=wishes)
elif "get-queue-url" in arguments:
    print(given["--queue-name"])
else:
    print(os.environ["ACCOUNT"] + given["--queue-url"])
"""
"""In place of the command line of AWS, which is not installed where tests run: it notes which queues it is to make."""


@pytest.mark.parametrize("source", ["orders", "orders.fifo", "parcels"])
def test_the_commands_in_that_error_make_what_is_missing(lab, tmp_path, source):
    queue = adopted(lab, "orders" if source == "parcels" else source, most=1000)
    with pytest.raises(ConfigError) as caught:
        lab.connect().open([source], create=False)
    wishes, tool = tmp_path / "wishes", tmp_path / "aws"
    tool.write_text(AWS.format(python=sys.executable))
    tool.chmod(0o755)
    account = queue.attributes()["QueueArn"].removesuffix(queue.name)
    more = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WISHES": str(wishes), "ACCOUNT": account}
    subprocess.run(["sh", "-euc", str(caught.value).partition("\n")[2]], check=True, env={**os.environ, **more})
    for name, attributes in map(json.loads, wishes.read_text().splitlines()):
        queue.client.create_queue(QueueName=name, Attributes=attributes)
    broker = lab.connect()
    assert "redrive-too-low" not in [finding.name for finding in broker.open([source], create=False)]
    names = broker.client.topic(source).names
    broker.close()
    policy = json.loads(lab.queue(names.suspects.removeprefix(names.prefix)).attributes()["RedrivePolicy"])
    assert policy["deadLetterTargetArn"] == account + names.dlq


def test_with_create_false_what_differs_from_ours_is_said_at_the_start(lab):
    lab.broker("orders").close()
    lab.queue("orders").change(DelaySeconds="5", RedrivePolicy="")
    broker = lab.connect()
    assert [finding.name for finding in broker.open(["orders"], create=False)] == ["no-redrive", "queue-delays"]
    broker.close()


def test_an_adopted_queue_that_is_deleted_is_not_made_anew_but_waited_for(lab):
    queue = adopted(lab, most=1000)
    broker = lab.broker("orders")
    broker.settle(Settlement(gone=broker.fetch("orders", 10)))
    before = names_of(lab)
    queue.delete()
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="settings that unpoison did not make"):
            broker.depth("orders")
    assert len(names_of(lab)) == len(before) - 1
    queue.create()
    queue.send("2")
    assert broker.depth("orders").ready == 1
