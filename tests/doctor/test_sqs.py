"""Each finding of unpoison doctor in SQS: a queue that has it, and the same one mended."""

import json

import pytest

from tests.contract.sqs_lab import SQSLab
from unpoison.brokers import checks_for, findings_for
from unpoison.errors import ConfigError
from unpoison.testing import given


@pytest.fixture
def lab(tmp_path, moto):
    with SQSLab(moto, tmp_path) as lab:
        lab.broker("orders")
        yield lab


def names(lab, *sources: str, longest: float | None = None) -> list[str]:
    return [finding.name for finding in findings_for(lab.url, sources, longest)]


def policy(lab, most: int, dlq: str = "orders-dlq") -> str:
    return json.dumps({"deadLetterTargetArn": lab.queue(dlq).attributes()["QueueArn"], "maxReceiveCount": most})


def test_what_unpoison_made_itself_has_no_finding(lab):
    assert names(lab) == names(lab, "orders") == []


@pytest.mark.parametrize(
    ("name", "queue", "broken", "mended"),
    [
        ("short-retention", "orders", {"MessageRetentionPeriod": "3600"}, {"MessageRetentionPeriod": "1209600"}),
        ("queue-delays", "orders", {"DelaySeconds": "5"}, {"DelaySeconds": "0"}),
        ("small-messages", "orders", {"MaximumMessageSize": "2048"}, {"MaximumMessageSize": "1048576"}),
        ("letters-expire-early", "orders-dlq", {"MessageRetentionPeriod": "86400"}, {"MessageRetentionPeriod": "1209600"}),
    ],
)
def test_an_attribute_that_loses_or_delays_messages_is_found(lab, name, queue, broken, mended):
    lab.queue(queue).change(**broken)
    assert names(lab, "orders") == [name]
    lab.queue(queue).change(**mended)
    assert names(lab, "orders") == []


def test_letters_that_expire_before_they_must_are_found(lab):
    for queue in ("orders", "orders-dlq"):
        lab.queue(queue).change(MessageRetentionPeriod="345600")
    assert names(lab, "orders") == ["letters-expire"]
    lab.queue("orders-dlq").change(MessageRetentionPeriod="1209600")
    assert names(lab, "orders") == []


@pytest.mark.parametrize("queue", ["orders", "orders-suspects"])
def test_a_last_net_that_catches_the_innocent_is_found(lab, queue):
    lab.queue(queue).change(RedrivePolicy=policy(lab, 3))
    (finding,) = findings_for(lab.url, ["orders"])
    assert (finding.name, finding.loses) == ("redrive-too-low", True)
    assert "after 3 receives" in finding.problem
    lab.queue(queue).change(RedrivePolicy=policy(lab, 1000))
    assert names(lab, "orders") == []


def test_a_dlq_that_takes_less_than_its_source_is_found(lab):
    lab.broker("orders")
    lab.queue("orders-dlq").change(MaximumMessageSize="262144")
    assert "small-messages" in names(lab, "orders")
    lab.queue("orders-dlq").change(MaximumMessageSize="1048576")
    assert "small-messages" not in names(lab, "orders")


def test_a_queue_without_a_last_net_is_found(lab):
    lab.queue("orders").change(RedrivePolicy="")
    assert names(lab, "orders") == ["no-redrive"]
    lab.queue("orders").change(RedrivePolicy=policy(lab, 1000))
    assert names(lab, "orders") == []


def test_a_last_net_that_leads_elsewhere_is_found(lab):
    lab.queue("elsewhere").create()
    lab.queue("orders").change(RedrivePolicy=policy(lab, 1000, "elsewhere"))
    assert names(lab, "orders") == ["redrive-elsewhere"]
    lab.queue("orders").change(RedrivePolicy=policy(lab, 1000))
    assert names(lab, "orders") == []


def test_a_dlq_that_gives_letters_up_is_found(lab):
    lab.queue("elsewhere").create()
    lab.queue("orders-dlq").change(RedrivePolicy=policy(lab, 10, "elsewhere"))
    assert names(lab, "orders") == ["letters-redriven"]
    lab.queue("orders-dlq").change(RedrivePolicy="")
    assert names(lab, "orders") == []


def test_a_queue_that_is_missing_is_found(lab):
    lab.queue("orders-replays").delete()
    assert names(lab) == ["queues-missing"]
    lab.broker("orders")
    assert names(lab) == []


def test_a_source_that_nobody_has_used_is_found(lab):
    assert names(lab, "order") == ["source-missing"]


def test_a_fifo_queue_is_told_about(lab):
    lab.broker("parcels.fifo")
    assert names(lab, "parcels.fifo") == ["retries-overtake"]


@pytest.mark.long
def test_many_dead_letters_are_found(lab):
    given.dead_letters(lab, "orders", [b"x"] * 101)
    assert names(lab, "orders") == ["many-dead-letters"]
    lab.dlq("orders").purge()
    assert names(lab, "orders") == []


def test_a_handler_that_may_run_for_longer_than_sqs_lets_it_is_found(lab):
    assert names(lab, "orders", longest=43_000) == []
    (finding,) = findings_for(lab.url, ["orders"], 50_000)
    assert (finding.name, finding.loses) == ("handler-over-twelve-hours", True)
    (finding,) = findings_for(lab.url, ["orders"], float("inf"))
    assert (finding.name, finding.loses) == ("handler-over-twelve-hours", False)


def test_a_visibility_that_a_pause_outlasts_is_found(tmp_path, moto):
    with SQSLab(moto, tmp_path, visibility=2) as lab:
        lab.broker("orders")
        assert names(lab, "orders") == ["short-visibility"]


def test_what_may_not_be_looked_at_is_said(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, with_proxy=True) as lab:
        lab.broker("orders")
        lab.proxy.denies = lambda operation, queue: operation == "GetQueueAttributes"
        assert names(lab, "orders") == ["cannot-look"]
        lab.proxy.denies = lambda operation, queue: operation == "ListQueues"
        assert names(lab, "orders") == []
        with pytest.raises(ConfigError, match="not authorized"):
            names(lab)


def test_every_finding_that_can_be_is_one_of_the_names(lab):
    assert set(checks_for(lab.url)) >= {"redrive-too-low", "letters-expire-early", "queues-missing", "many-dead-letters"}
