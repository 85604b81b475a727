"""Which spans does a message get in one process, and what does tracing do to nobody's message?"""

import asyncio
import itertools
import subprocess
import sys

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler, TraceIdRatioBased

from tests.tracing import recording
from unpoison import App, Backoff, Discard, PublishFailed, RetryLater
from unpoison.errors import BrokerUnavailable
from unpoison.model.failure import Crash, Failure
from unpoison.model.message import Delivery, Message
from unpoison.model.verdict import ErrorClassification
from unpoison.observing import tracing_verdicts
from unpoison.observing.tracing import Tracing, attributes_of, trace_id_of
from unpoison.observing.tracing_sends import beside
from unpoison.observing.tracing_verdicts import Judged
from unpoison.testing.running import Journal
from unpoison.workers import hooks

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PARENT_SPAN = "0x0af7651916cd43dd8448eb211c80319c", "0xb7ad6b7169203331"
numbers = itertools.count()


def new_app(**options):
    return App(f"memory://traces-{next(numbers)}", **options)


def consuming(app, *, source="orders", isolation="inline", **options):
    return app.consumer(
        source,
        **{"isolation": isolation, "backoff": Backoff.immediate(), "max_attempts": 2, "breaker": None, "admission": None}
        | options,
    )


@pytest.fixture
def recorded():
    with recording() as recorded:
        yield recorded


def inner():
    with trace.get_tracer("shop").start_as_current_span("inner"):
        pass


def sync_handler(order: dict) -> None:
    inner()


async def async_handler(order: dict) -> None:
    await asyncio.sleep(0)
    inner()


@pytest.mark.parametrize(
    ("isolation", "handler"),
    [("inline", sync_handler), ("thread", sync_handler), ("thread", async_handler)],
    ids=["inline", "thread", "async"],
)
def test_an_attempt_is_below_its_publish_and_what_the_handler_does_is_below_the_attempt(recorded, isolation, handler):
    app = new_app()
    consuming(app, isolation=isolation)(handler)
    app.publish("orders", {}, id="o-1")
    app.run(until_empty=True)
    sent, process, inside = (recorded.spans.one(name) for name in ("send orders", "process orders", "inner"))
    assert (sent.kind, process.kind) == ("PRODUCER", "CONSUMER")
    assert (process.parent, process.links, process.trace) == (sent.id, [sent.id], sent.trace)
    assert inside.parent == process.id
    common = {"messaging.system": "memory", "messaging.destination.name": "orders", "messaging.message.id": "o-1"}
    assert sent.attributes == common | {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert process.attributes == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "unpoison.attempt": 1,
    }
    assert (sent.status, process.status) == ("UNSET", "UNSET")


def test_a_publish_in_a_handler_is_below_the_attempt_and_takes_the_baggage_along(recorded):
    app, seen = new_app(), []

    @consuming(app)
    def pass_on(order: dict) -> None:
        app.publish("invoices", order)

    @consuming(app, source="invoices")
    def keep(order: dict) -> None:
        seen.append(baggage.get_baggage("tenant"))

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    app.publish("orders", {})
    context.detach(token)
    app.run(until_empty=True)
    spans = recorded.spans
    assert seen == ["acme"]
    assert spans.one("send invoices").parent == spans.one("process orders").id
    assert {each.trace for each in spans.all} == {spans.one("send orders").trace}


def test_a_message_that_fails_tells_each_attempt_and_each_verdict_in_one_trace_also_after_its_replay(recorded):
    app, broken = new_app(), [True]

    @consuming(app)
    def handle(order: dict) -> None:
        if broken:
            raise TimeoutError("no answer from https://eva:swordfish@bank.example/pay, password=swordfish")

    app.publish("orders", {}, id="o-1")
    app.run(until_empty=True)
    (letter,) = app.dlq("orders").peek()
    broken.clear()
    app.dlq("orders").replay_one(letter.id)
    app.run(until_empty=True)
    app.close()
    spans = recorded.spans
    sent = spans.one("send orders")
    first, second, third = spans.named("process orders")
    (retry,), (dead,) = spans.below(first), spans.below(second)
    assert {each.parent for each in (first, second, third)} == {sent.id}
    assert {each.trace for each in spans.all} == {sent.trace}
    assert letter.message.headers["traceparent"].split("-")[1] == sent.trace.removeprefix("0x") == letter.trace_id
    assert [each.attributes["unpoison.attempt"] for each in (first, second, third)] == [1, 2, 1]
    assert (third.attributes["unpoison.replays"], third.status, third.links) == (1, "UNSET", [sent.id])
    for each in (first, second):
        assert (each.status, each.attributes["error.type"]) == ("ERROR", "TimeoutError")
        assert each.attributes["unpoison.classification"] == "transient"
        assert each.attributes["unpoison.fingerprint"] == letter.fingerprint
        (event,) = each.events
        assert event["name"] == "exception"
        assert event["attributes"]["exception.type"] == "TimeoutError"
        assert "in handle" in event["attributes"]["exception.stacktrace"]
    assert "swordfish" not in str(list(spans.all))
    assert (retry.name, retry.verdict, retry.kind, retry.attributes["unpoison.delay"]) == (
        "unpoison.retry",
        "retry",
        "INTERNAL",
        0.0,
    )
    assert (dead.name, dead.verdict, dead.status) == ("unpoison.dead_letter", "dead_letter", "ERROR")
    assert dead.attributes["unpoison.letter_id"] == letter.id
    assert dead.attributes["unpoison.reason"] == letter.reason


def test_a_message_without_a_context_has_one_trace_too_and_samplers_decide_once_for_all_its_attempts():
    app = new_app()

    @consuming(app)
    def handle(order: dict) -> None:
        raise ValueError

    ids = [f"o-{n}" for n in range(60)]
    app.publish_many("orders", [{}] * 60, ids=ids)  # no SDK yet: as another program sends them
    with recording(TracerProvider(sampler=TraceIdRatioBased(0.5))) as recorded:
        app.run(until_empty=True)
        spans = recorded.spans
    app.close()
    sampled = [id_ for id_ in ids if spans.of(id_)]
    assert 5 < len(sampled) < 55
    for id_ in sampled:
        kinds = [each.name for each in spans.of(id_)]
        assert sorted(kinds) == ["process orders", "unpoison.dead_letter"]
        assert {each.trace for each in spans.of(id_)} == {f"0x{trace_id_of('orders', id_):032x}"}
    assert all(each.parent is None and each.links == [] for each in spans.named("process orders"))


def test_attempts_of_a_message_without_a_context_share_its_trace(recorded):
    app = new_app()

    @consuming(app)
    def handle(order: dict) -> None:
        raise TimeoutError

    propagate_nothing = propagate.get_global_textmap()
    propagate.set_global_textmap(Broken())
    app.publish("orders", {}, id="o-1")
    propagate.set_global_textmap(propagate_nothing)
    app.run(until_empty=True)
    app.close()
    attempts = recorded.spans.named("process orders")
    assert len(attempts) == 2
    assert {each.trace for each in attempts} == {f"0x{trace_id_of('orders', 'o-1'):032x}"}


@pytest.mark.parametrize("name", ["traceparent", "TraceParent"])
def test_a_context_that_the_sender_has_set_stays_and_is_used(recorded, name):
    app, seen = new_app(), []

    @consuming(app)
    def handle(order: dict, delivery: Delivery) -> None:
        seen.append(dict(delivery.headers))

    app.publish("orders", {}, headers={name: PARENT, "tenant": "acme"})
    app.run(until_empty=True)
    sent, process = recorded.spans.one("send orders"), recorded.spans.one("process orders")
    assert seen == [{name: PARENT, "tenant": "acme"}]
    assert (sent.kind, sent.links) == ("CLIENT", [PARENT_SPAN])
    assert (process.parent, process.trace, process.links) == (PARENT_SPAN, TRACE, [PARENT_SPAN])


def test_what_is_current_in_a_worker_is_no_parent_of_its_messages(recorded):
    app = new_app()

    @app.on_worker_start
    def start():
        context.attach(propagate.extract({"traceparent": PARENT}))

    consuming(app)(sync_handler)
    app.publish("orders", {}, id="o-1", headers={"traceparent": "garbage"})
    app.run(until_empty=True)
    process = recorded.spans.one("process orders")
    assert (process.parent, process.links, process.trace) == (None, [], f"0x{trace_id_of('orders', 'o-1'):032x}")


@pytest.mark.parametrize(
    ("users", "ours", "sent"),
    [
        ({}, {"traceparent": "t"}, {"traceparent": "t"}),
        ({"a": "1"}, {"traceparent": "t", "baggage": "b"}, {"a": "1", "traceparent": "t", "baggage": "b"}),
        ({"traceparent": "u"}, {"traceparent": "t", "tracestate": "s", "baggage": "b"}, {"traceparent": "u", "baggage": "b"}),
        ({"tracestate": "u"}, {"traceparent": "t", "tracestate": "s"}, {"tracestate": "u"}),
        ({"Baggage": "u"}, {"traceparent": "t", "baggage": "b"}, {"Baggage": "u", "traceparent": "t"}),
    ],
)
def test_headers_of_the_user_stay_and_parts_of_two_traces_are_not_mixed(users, ours, sent):
    assert beside(users, ours) == sent


def test_several_messages_are_one_span_and_each_brings_its_context(recorded):
    app = new_app()
    consuming(app)(sync_handler)
    app.publish_many("orders", [{}, {}, {}])
    app.run(until_empty=True)
    sent = recorded.spans.one("send orders")
    assert sent.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in sent.attributes
    assert [each.parent for each in recorded.spans.named("process orders")] == [sent.id] * 3


def test_a_publish_that_fails_is_an_error_of_its_span(recorded, monkeypatch):
    app = new_app()

    def connect():
        raise BrokerUnavailable("amqp://eva:swordfish@mq does not answer")

    monkeypatch.setattr(app, "_broker", connect)
    with pytest.raises(PublishFailed):
        app.publish("orders", {})
    sent = recorded.spans.one("send orders")
    assert (sent.status, sent.attributes["error.type"]) == ("ERROR", "not sent")
    assert "does not answer" in sent.said
    assert "swordfish" not in sent.said


def test_what_a_handler_asks_for_is_told(recorded):
    app, later = new_app(), [RetryLater(0.01)]

    @consuming(app)
    def handle(order: dict) -> None:
        if order["do"] == "discard":
            raise Discard("not ours")
        if later:
            raise later.pop()

    app.publish("orders", {"do": "discard"}, id="discard")
    app.publish("orders", {"do": "later"}, id="later")
    app.run(until_empty=True)
    spans = recorded.spans
    (discarded,), (decided,) = spans.of("discard", "process orders"), spans.of("discard", "unpoison.discard")
    assert (discarded.status, discarded.events, discarded.verdict) == ("UNSET", [], "discard")
    assert (decided.attributes["unpoison.reason"], decided.parent) == ("not ours", discarded.id)
    (retry,) = spans.of("later", "unpoison.retry")
    assert (retry.attributes["unpoison.charged"], retry.attributes["unpoison.attempt"]) == (False, 1)


def test_an_async_handler_over_its_time_is_told_as_a_timeout(recorded):
    app = new_app()

    @consuming(app, isolation="thread", timeout=0.05, max_attempts=1)
    async def handle(order: dict) -> None:
        await asyncio.sleep(60)

    app.publish("orders", {}, id="o-1")
    app.run(until_empty=True)
    app.close()
    process, dead = recorded.spans.one("process orders"), recorded.spans.one("unpoison.dead_letter")
    assert (process.status, process.attributes["unpoison.classification"]) == ("ERROR", "timeout")
    assert process.attributes["error.type"] == "unpoison.Timeout"
    assert dead.parent == process.id


def test_a_body_that_does_not_fit_is_an_error_of_the_attempt(recorded):
    app = new_app()
    consuming(app)(sync_handler)
    app.publish("orders", b"no json")
    app.run(until_empty=True)
    app.close()
    assert recorded.spans.one("process orders").attributes["unpoison.classification"] == "invalid"


def test_what_a_hook_does_is_below_the_verdict(recorded):
    app = new_app()

    @consuming(app, max_attempts=1, on_dlq=lambda *_: inner())
    def handle(order: dict) -> None:
        raise KeyError("piano")

    app.publish("orders", {})
    app.run(until_empty=True)
    app.close()
    assert recorded.spans.one("inner").parent == recorded.spans.one("unpoison.dead_letter").id


def test_an_attempt_that_took_its_process_down_gets_a_span_of_the_time_it_ran(recorded):
    tracing = Tracing.found("sqlite:///shop.db", "orders")
    failure = Failure(
        classification=ErrorClassification.CRASH,
        rule="r",
        type_name="unpoison.WorkerDied",
        text="killed by SIGSEGV",
        traceback="Fatal Python error",
        crash=Crash(signal="SIGSEGV", elapsed=1.5),
    )
    said = Judged("retry", "r", 10_000_000_000, 1, 0, "crash", 2.0)
    message = Message("o-1", "orders", b"", None, {"traceparent": PARENT})
    with tracing_verdicts.told(tracing, message, failure, said):
        inner()
    attempt, retry, inside = (recorded.spans.one(name) for name in ("process orders", "unpoison.retry", "inner"))
    assert (attempt.parent, attempt.links, attempt.nanoseconds) == (PARENT_SPAN, [PARENT_SPAN], 1_500_000_000)
    assert (attempt.status, attempt.attributes["unpoison.crash.signal"]) == ("ERROR", "SIGSEGV")
    assert attempt.events[0]["attributes"]["exception.stacktrace"] == "Fatal Python error"
    assert (retry.parent, inside.parent) == (attempt.id, retry.id)


def test_one_that_left_a_span_gets_no_second(recorded):
    failure = Failure(classification=ErrorClassification.BUG, rule="r", type_name="E", crash=Crash(), traceparent=PARENT)
    with tracing_verdicts.told(
        Tracing.found("sqlite://", "orders"), Message("1", "orders", b""), failure, Judged("retry", "r", 1, 1, 0, "bug")
    ):
        pass
    assert [(each.name, each.parent) for each in recorded.spans.all] == [("unpoison.retry", PARENT_SPAN)]


class Broken(TextMapPropagator):
    def extract(self, carrier, context=None, getter=None):
        raise RuntimeError("extract")

    def inject(self, carrier, context=None, setter=None):
        raise RuntimeError("inject")

    @property
    def fields(self):
        raise RuntimeError("fields")


class NoText(Broken):
    def inject(self, carrier, context=None, setter=None):
        carrier["traceparent"] = "\ud800"

    def extract(self, carrier, context=None, getter=None):
        return "no context"


class BrokenSampler(Sampler):
    def should_sample(self, *args, **kwargs):
        raise RuntimeError("sample")

    def get_description(self):
        return "broken"


class BrokenProcessor(SpanProcessor):
    def on_start(self, span, parent_context=None):
        raise RuntimeError("start")


class BrokenEnd(SpanProcessor):
    def on_end(self, span):
        raise RuntimeError("end")

    def force_flush(self, timeout_millis=30000):
        raise RuntimeError("flush")


def provider_with(processor):
    provider = TracerProvider()
    provider.add_span_processor(processor)
    return provider


@pytest.mark.parametrize("isolation", ["inline", "thread"])
@pytest.mark.parametrize(
    "broken",
    [Broken(), NoText(), BrokenSampler(), BrokenProcessor(), BrokenEnd()],
    ids=lambda each: type(each).__name__,
)
def test_what_is_broken_costs_spans_and_no_message(broken, isolation):
    provider = TracerProvider(sampler=broken) if isinstance(broken, Sampler) else None
    provider = provider_with(broken) if isinstance(broken, SpanProcessor) else provider
    usual = propagate.get_global_textmap()
    app, seen = new_app(), []

    @consuming(app, isolation=isolation)
    def handle(order: dict) -> None:
        seen.append(order["n"])
        if order["n"] == 2:
            raise ValueError("bad")

    with recording(provider), Journal() as journal:
        try:
            if isinstance(broken, TextMapPropagator):
                propagate.set_global_textmap(broken)
            app.publish_many("orders", [{"n": n} for n in range(4)])
            result = app.run(until_empty=True)
        finally:
            propagate.set_global_textmap(usual)
    app.close()
    assert (result.total.done, result.total.dead) == (3, 1)
    assert sorted(seen) == [0, 1, 2, 3]
    assert 1 <= len(journal.of("tracing-failed")) <= 6  # once for each place, not for each message


def test_nobody_else_pays_for_it(tmp_path):
    """The API is not even imported, and where it is but no SDK is set up, handlers are called and messages sent as they are."""
    program = """
import sys
from unpoison import App
from unpoison.model.message import Delivery
app = App("memory://")
@app.consumer("orders", isolation="inline")
def handle(order: dict, delivery: Delivery):
    assert not delivery.headers
app.publish("orders", {})
assert app.run(until_empty=True).total.done == 1
assert not any(name.startswith("opentelemetry") for name in sys.modules)
import opentelemetry.trace
from unpoison.observing.tracing import Tracing
assert Tracing.found("memory://", "orders") is None
app.publish("orders", {})
assert app.run(until_empty=True).total.done == 1
assert "opentelemetry.propagate" not in sys.modules
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_an_sdk_that_is_switched_off_is_none(monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with recording():
        assert Tracing.found("memory://", "orders") is None


def test_failures_that_come_faster_than_spans_do_not_fill_the_memory(recorded, monkeypatch):
    monkeypatch.setattr(hooks, "MOST_WAITING", 0)
    app, called = new_app(), []

    @consuming(app, source="with", max_attempts=1, on_dlq=lambda *_: called.append(1))
    def keep(order: dict) -> None:
        raise KeyError

    @consuming(app, source="without", max_attempts=1)
    def lose(order: dict) -> None:
        raise KeyError

    app.publish_many("without", [{}] * 3)
    app.publish("with", {})
    with Journal() as journal:
        result = app.run(until_empty=True)
    app.close()
    assert result.total.dead == 4
    assert len(journal.of("spans-dropped")) == 1
    assert called == [1]  # hooks are called, however many wait
    (told,) = recorded.spans.named("unpoison.dead_letter")
    assert told.attributes["messaging.destination.name"] == "with"


@pytest.mark.parametrize(
    ("url", "system", "group"),
    [
        ("sqlite:///shop.db", "sqlite", None),
        ("amqps://u:p@mq/shop", "rabbitmq", None),
        ("postgres://db/shop?application_name=x", "postgresql", None),
        ("sqs://eu-central-1", "aws_sqs", None),
        ("kafka+ssl://a:1,b:2?group=billing&prefix=x", "kafka", "billing"),
        ("rediss+sentinel://a/0?group=billing", "redis", "billing"),
        ("redis://a", "redis", "unpoison"),
        ("tls://token@a", "nats", "unpoison"),
        ("memory://", "memory", None),
    ],
)
def test_a_broker_is_called_as_the_conventions_call_it(url, system, group):
    known = attributes_of(url, "orders")
    assert known["messaging.system"] == system
    assert known.get("messaging.consumer.group.name") == group
    assert known["messaging.destination.name"] == "orders"


def test_the_trace_of_a_message_without_a_context_is_the_same_everywhere():
    assert f"{trace_id_of('orders', 'o-1'):032x}" == "0800db0e53e302bf9c7834b6aa64294e"
    assert trace_id_of("orders", "\ud800") != trace_id_of("orders", "o-1") != trace_id_of("emails", "o-1")
