"""Each trap that lies in a queue of RabbitMQ is made for real, found by its name, mended by the commands of its fix, and gone."""

import pytest

from tests.doctor.rabbitmq_vhost import until
from unpoison.brokers import findings_for

QUORUM = {"x-queue-type": "quorum"}
LETTERS = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "orders"}
SAFE = {**QUORUM, **LETTERS, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": 100}
POLICIES: dict[str, tuple[str, dict, bool]] = {
    "dlq-limit": (r"^orders\.dlq$", {"delivery-limit": 5}, True),
    "dlq-expires": (r"^orders\.dlq$", {"message-ttl": 60_000, "overflow": "reject-publish"}, True),
    "dlq-sends-back": (
        r"dlq$",
        {"message-ttl": 60_000, "dead-letter-exchange": "", "dead-letter-routing-key": "orders"},
        True,
    ),
    "length-limit-drops": (r"^orders\.dlq$", {"max-length": 10}, True),
    "length-limit-refuses": (r"suspects", {"max-length-bytes": 1_000, "overflow": "reject-publish"}, False),
    "queue-expires": (r"^orders\.starts$", {"expires": 3_600_000}, True),
    "messages-expire": (r"^orders$", {"message-ttl": 60_000}, True),
    "source-limit-low": (r"^orders$", {"delivery-limit": 3}, True),
    "suspects-limit": (r"^orders\.suspects$", {"delivery-limit": 3}, True),
    "delay-cut-short": (r"^unpoison\.delay\.0\.5s$", {"message-ttl": 100}, False),
    "delay-queue-differs": (r"^unpoison\.delay\.0\.5s$", {"dead-letter-routing-key": "mails"}, True),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_undoes_what_the_queue_was_made_with(vhost, name):
    vhost.run_once(level=0)
    pattern, definition, loses = POLICIES[name]
    vhost.policy(pattern, definition, priority=7)
    seen = vhost.found()
    assert set(seen) == {name}
    assert seen[name].loses is loses
    assert "the policy 'broad'" in seen[name].problem
    vhost.mend(seen[name])
    assert vhost.found() == {}


@pytest.mark.parametrize("name", ["dlq-limit", "dlq-expires", "messages-expire", "source-limit-low"])
def test_an_operator_policy_that_undoes_it(vhost, name):
    pattern, definition, _ = POLICIES[name]
    definition = {key: value for key, value in definition.items() if key != "overflow"}
    vhost.policy(pattern, definition, operator=True)
    vhost.policy(pattern, definition)
    seen = vhost.found()
    assert set(seen) == {name}
    vhost.mend(seen[name])
    assert vhost.found() == {}


def test_what_does_no_harm_in_a_policy_is_kept(vhost_4):
    vhost_4.policy("dlq", {"delivery-limit": 5, "queue-leader-locator": "balanced"}, priority=3)
    vhost_4.policy("^orders$", {"max-length": 5_000, "message-ttl": 5}, name="source")
    vhost_4.policy("", {"delivery-limit": 4, "max-in-memory-length": 9}, name="all", operator=True)
    for finding in findings_for(vhost_4.url):
        vhost_4.mend(finding)
    assert vhost_4.found() == {}
    definitions = {each["name"]: each["definition"] for each in vhost_4.http("GET", "policies/{vhost}")}
    assert definitions["unpoison-orders.dlq"] == {"delivery-limit": -1, "queue-leader-locator": "balanced"}
    assert definitions["unpoison-orders"]["max-length"] == 5_000
    assert "message-ttl" not in definitions["unpoison-orders"]
    (operator,) = vhost_4.http("GET", "operator-policies/{vhost}")
    assert operator["definition"] == {"max-in-memory-length": 9}


def test_where_letters_go_already_is_not_changed(empty):
    empty.declare("orders", QUORUM)
    empty.run_once()
    empty.http("PUT", "exchanges/{vhost}/mine", {"type": "fanout", "durable": True})
    empty.http("POST", "bindings/{vhost}/e/mine/q/orders.dlq", {})
    empty.policy("^orders$", {"dead-letter-exchange": "mine", "delivery-limit": 3})
    seen = empty.found()
    assert set(seen) == {"source-limit-low", "at-least-once-off"}
    empty.mend(seen["source-limit-low"])
    assert empty.found() == {}
    (made,) = [each for each in empty.http("GET", "policies/{vhost}") if each["name"] == "unpoison-orders"]
    assert made["definition"]["dead-letter-exchange"] == "mine"
    assert "dead-letter-routing-key" not in made["definition"]


ADOPTED = {
    "source-limit-deletes": ({**QUORUM, "x-delivery-limit": 50}, {}, True),
    "source-limit-low": ({**SAFE, "x-delivery-limit": 3}, {}, True),
    "at-least-once-off": ({**QUORUM, **LETTERS}, {}, False),
    "at-least-once-off overflow": ({**SAFE, "x-overflow": "drop-head"}, {}, False),
    "dead-letters-loop": ({**SAFE, "x-dead-letter-exchange": ""}, {}, True),
    "messages-expire": ({**SAFE, "x-message-ttl": 60_000}, {}, True),
    "queue-expires": ({**SAFE, "x-expires": 3_600_000}, {}, True),
    "single-active-consumer": ({**SAFE, "x-single-active-consumer": True}, {}, False),
    "stream-queue": ({"x-queue-type": "stream"}, {}, True),
    "classic-queue": ({}, {}, False),
    "classic-queue queue-not-durable": ({}, {"durable": False}, True),
    "classic-queue queue-auto-delete": ({}, {"auto_delete": True}, True),
    "classic-queue length-limit-drops": ({"x-max-length": 10}, {}, True),
}


@pytest.mark.parametrize("case", ADOPTED)
def test_a_source_that_was_there_before(empty, case):
    arguments, flags, loses = ADOPTED[case]
    names = {name for name in case.split() if "-" in name}
    empty.declare("orders", arguments, **flags)
    empty.run_once()
    seen = empty.found()
    assert set(seen) == names
    assert any(finding.loses for finding in seen.values()) is loses
    empty.mend(seen[min(seen, key=lambda name: name == "classic-queue")])
    empty.run_once()
    assert set(empty.found()) <= {"classic-queue"}


def test_a_priority_queue(empty):
    empty.declare("orders", {"x-max-priority": 5})
    empty.run_once()
    assert "has 5 priorities" in empty.found()["priority-queue"].problem
    empty.http("DELETE", "queues/{vhost}/orders")
    empty.run_once()
    assert empty.found() == {}


def test_dead_letters_unrouted(empty):
    empty.declare("orders", {**SAFE, "x-dead-letter-exchange": "nowhere"})
    empty.run_once()
    assert "which does not exist" in empty.found()["dead-letters-unrouted"].problem
    empty.http("PUT", "exchanges/{vhost}/nowhere", {"type": "direct", "durable": True})
    assert "from which nothing leads on" in empty.found()["dead-letters-unrouted"].problem
    empty.http("POST", "bindings/{vhost}/e/nowhere/q/orders.dlq", {"routing_key": "orders"})
    assert empty.found() == {}


def test_where_a_topic_leads_to_is_not_judged(empty):
    empty.declare("orders", {**SAFE, "x-dead-letter-exchange": "topics"})
    empty.run_once()
    empty.http("PUT", "exchanges/{vhost}/topics", {"type": "topic", "durable": True})
    empty.http("POST", "bindings/{vhost}/e/topics/q/orders.dlq", {"routing_key": "#"})
    assert empty.found() == {}


def test_an_exclusive_source(empty):
    with empty.channel() as channel:
        channel.queue_declare("orders", exclusive=True)
        seen = empty.found("orders")
        assert set(seen) >= {"queue-exclusive", "dlq-missing", "queues-missing"}
        assert seen["queue-exclusive"].loses
        assert "queue-exclusive" in empty.found("orders", url=empty.bare), "seen by AMQP alone too"
    empty.run_once()
    assert empty.found("orders") == {}


@pytest.mark.parametrize(
    ("queue", "arguments", "name"),
    [("orders.suspects", {}, "suspects-not-quorum"), ("unpoison.delay.0.3s", QUORUM, "delay-queue-differs")],
)
def test_queues_of_ours_that_something_else_made(empty, queue, arguments, name):
    empty.declare(queue, arguments)
    if name == "suspects-not-quorum":
        empty.run_once()
    finding = empty.found()[name]
    assert finding.loses
    empty.mend(finding)
    empty.run_once(level=0)
    assert empty.found() == {}


def test_a_delay_exchange_that_something_else_made(vhost):
    vhost.http("PUT", "exchanges/{vhost}/unpoison.delay.0", {"type": "fanout", "durable": True})
    finding = vhost.found()["delay-queue-differs"]
    vhost.mend(finding)
    vhost.run_once(level=0)
    assert vhost.found() == {}


def test_a_policy_on_all_delay_queues_is_told_and_mended_once(vhost):
    vhost.run_once(level=1)
    vhost.policy("delay", {"max-length": 1_000}, priority=2)
    vhost.policy("delay.*3s", {"max-length": 1_000, "queue-master-locator": "min-masters"}, priority=4, name="narrow")
    (finding, other) = findings_for(vhost.url)[1:]
    assert "The same is true of 16 more delay queues." in finding.problem
    assert (finding.name, other.name) == ("length-limit-refuses", "length-limit-refuses")
    vhost.mend(finding)
    assert vhost.found() == {}


def test_delay_queues_missing(vhost):
    vhost.run_once(level=1)
    vhost.http("DELETE", "queues/{vhost}/unpoison.delay.3s")
    assert "unpoison.delay.3s" in vhost.found()["delay-queues-missing"].problem
    vhost.run_once(level=1)
    assert vhost.found() == {}


def test_dlq_missing(vhost):
    vhost.http("DELETE", "queues/{vhost}/orders.dlq")
    seen = vhost.found()
    assert set(seen) == {"dlq-missing", "dead-letters-unrouted"}
    vhost.mend(seen["dlq-missing"])
    assert vhost.found() == {}


def test_queues_missing(vhost):
    vhost.http("DELETE", "queues/{vhost}/orders.starts")
    finding = vhost.found()["queues-missing"]
    assert "do not exist: orders.starts." in finding.problem
    vhost.mend(finding)
    assert vhost.found() == {}


def test_dlq_unbound(vhost):
    vhost.http("DELETE", "bindings/{vhost}/e/dlx/q/orders.dlq/orders")
    seen = vhost.found()
    assert set(seen) == {"dlq-unbound", "dead-letters-unrouted"}
    vhost.mend(seen["dlq-unbound"])
    assert vhost.found() == {}


@pytest.mark.parametrize("kind", [{"type": "fanout", "durable": True}, {"type": "direct", "durable": False}])
def test_dlx_differs(empty, kind):
    empty.http("PUT", "exchanges/{vhost}/dlx", kind)
    empty.run_once()
    finding = empty.found()["dlx-differs"]
    empty.mend(finding)
    empty.run_once()
    assert empty.found() == {}


def test_letters_that_were_meant_to_expire(empty):
    empty.url += "&dlq_ttl=3600"
    empty.run_once()
    assert empty.found() == {}
    empty.policy("dlq$", {"message-ttl": 60_000})
    assert "The URL has dlq_ttl=3600" in empty.found()["dlq-expires"].problem


def test_messages_that_were_meant_to_expire(empty):
    empty.url += "&message_ttl=3600"
    empty.run_once()
    assert empty.found() == {}
    empty.policy("^orders$", {"message-ttl": 60_000})
    seen = empty.found()
    assert set(seen) == {"messages-expire"}
    assert "add message_ttl=60 to the URL" in seen["messages-expire"].fix


def test_suspects_consumed(vhost):
    with vhost.channel() as channel:
        channel.basic_consume("orders.suspects", lambda *_: None)
        finding = vhost.found()["suspects-consumed"]
        assert finding.loses
        assert finding.fix.endswith(f"list_consumers -p {vhost.name}")
    until([], vhost.found)


def test_a_dlq_with_the_default_limit_of_version_4(empty_4):
    empty_4.declare("orders.dlq", QUORUM)
    empty_4.run_once()
    finding = empty_4.found()["dlq-limit"]
    assert "limit of 20 (by RabbitMQ's own default)" in finding.problem
    empty_4.mend(finding)
    assert empty_4.found() == {}


def test_a_source_with_the_default_limit_of_version_4(empty_4):
    empty_4.declare("orders", QUORUM)
    empty_4.run_once()
    finding = empty_4.found()["source-limit-deletes"]
    assert "that came back 21 times is deleted" in finding.problem
    empty_4.mend(finding)
    assert empty_4.found() == {}


def test_delayed_retry_on(vhost_4):
    vhost_4.policy("^orders$", {"delayed-retry-type": "failed", "delayed-retry-min": 500})
    finding = vhost_4.found()["delayed-retry-on"]
    vhost_4.mend(finding)
    assert vhost_4.found() == {}
