"""What other systems say about their dead letters is read as they write it, and never trusted."""

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unpoison.model.failure import NAME_LIMIT, TEXT_LIMIT, TRACEBACK_LIMIT
from unpoison.model.message import MOST_COUNTED, MOST_MOMENT, Counters, Message
from unpoison.port.foreign import celery, json_form, kafka_headers, x_death
from unpoison.port.foreign.told import MOST_FACT, Told, from_big_endian, moment, number, place
from unpoison.port.serialization import record_text

CARRIED = Message("m1", "orders", b"{}", "dlq key", {"trace": "abc"})

DLT = [  # as DeadLetterPublishingRecoverer writes them
    ("kafka_dlt-original-topic", b"orders"),
    ("kafka_dlt-original-partition", struct.pack(">i", 3)),
    ("kafka_dlt-original-offset", struct.pack(">q", 2**40 + 17)),
    ("kafka_dlt-original-timestamp", struct.pack(">q", 1_785_000_000_000)),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"),
    ("kafka_dlt-original-consumer-group", b"billing"),
    ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    ("kafka_dlt-exception-message", b"Listener failed; no stock"),
    ("kafka_dlt-exception-stacktrace", b"org.spring...\nCaused by: java.lang.IllegalStateException: no stock\n\tat Shop.handle"),
]
RETRY_TOPIC = [(name.replace("kafka_dlt-", "kafka_"), value) for name, value in DLT] + [
    ("retry_topic-original-timestamp", (1_785_000_000_000).to_bytes(6, "big")),
    ("retry_topic-attempts", struct.pack(">i", 5)),
    ("retry_topic-backoff-timestamp", (1_785_000_060_000).to_bytes(6, "big")),
]
CONNECT = [
    ("__connect.errors.topic", b"orders"),
    ("__connect.errors.partition", b"0"),
    ("__connect.errors.offset", b"42"),
    ("__connect.errors.connector.name", b"sink"),
    ("__connect.errors.task.id", b"1"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ("__connect.errors.exception.message", b"not JSON"),
    ("__connect.errors.exception.stacktrace", b"org.apache.kafka.connect.errors.DataException: not JSON\n\tat x.y"),
]


@pytest.mark.parametrize(("headers", "attempts"), [(DLT, 0), (RETRY_TOPIC, 4)], ids=["kafka_dlt-", "retry topics"])
def test_both_styles_of_spring_kafka_are_read(headers, attempts):
    told = kafka_headers.read(headers)
    assert (told.source, told.error_type, told.error) == (
        "orders",
        "java.lang.IllegalStateException",
        "Listener failed; no stock",
    )
    assert told.original == {
        "topic": "orders",
        "partition": 3,
        "offset": 2**40 + 17,
        "group": "billing",
        "timestamp": 1_785_000_000_000,
    }
    assert (told.attempts, told.content) == (attempts, None)
    assert told.traceback.endswith("Shop.handle")


def test_all_that_spring_writes_stays_behind_and_what_a_sender_may_have_written_does_not():
    assert all(kafka_headers.is_told(name) for name, _ in DLT + RETRY_TOPIC + CONNECT)
    assert not any(map(kafka_headers.is_told, ("kafka_topic", "kafka_dlt-mine", "retry_topic-mine", "original-topic", "trace")))


def test_a_record_that_spring_gave_up_twice_came_from_the_first_place_and_failed_for_the_last_reason():
    second = [(name, b"orders.DLT" if name.endswith("topic") else value) for name, value in DLT]
    second = [(name, b"again" if name.endswith("message") else value) for name, value in second]
    told = kafka_headers.read(DLT + second)
    assert (told.source, told.error) == ("orders", "again")


def test_a_record_whose_key_spring_could_not_read_tells_that_error():
    of_key = [(name.replace("exception-", "key-exception-"), value) for name, value in DLT]
    assert kafka_headers.read(of_key).error == "Listener failed; no stock"


@pytest.mark.parametrize("value", [b"\x03", struct.pack(">i", 3)], ids=["a byte, as before 2.8", "an int"])
def test_attempts_of_retry_topics_are_those_that_were_made(value):
    assert kafka_headers.read([("kafka_original-topic", b"orders"), ("retry_topic-attempts", value)]).attempts == 2


def test_kafka_connect_is_read():
    told = kafka_headers.read(CONNECT)
    assert (told.source, told.error_type, told.error) == ("orders", "org.apache.kafka.connect.errors.DataException", "not JSON")
    assert told.original == {
        "topic": "orders",
        "partition": 0,
        "offset": 42,
        "connector": "sink",
        "stage": "VALUE_CONVERTER",
        "task": "1",
        "class": "org.apache.kafka.connect.json.JsonConverter",
    }


def test_numbers_that_make_no_sense_are_left_out():
    odd = [("kafka_dlt-original-offset", struct.pack(">q", -1)), ("kafka_dlt-original-partition", b"12")]
    assert kafka_headers.read(odd).original == {}
    assert kafka_headers.read([(CONNECT[1][0], b"-1"), (CONNECT[2][0], b"9" * 400)]).original == {}
    assert kafka_headers.read([("kafka_deliveryAttempt", b"\0\0\0\1"), ("trace", b"kafka_dlt-original-topic")]) is None


def death(queue: str, reason: str, count: int = 1, time: int = 1_785_000_000, **more: Any) -> dict[str, Any]:
    """An entry as RabbitMQ writes it."""
    return {"count": count, "reason": reason, "queue": queue, "time": time, "exchange": "", "routing-keys": [queue]} | more


@pytest.mark.parametrize(
    ("reason", "attempts", "means"),
    [
        ("rejected", 3, "a consumer rejected it"),
        ("expired", 0, "message_ttl"),
        ("maxlen", 0, "was full"),
        ("delivery_limit", 3, "more often"),
        ("odd", 0, "RabbitMQ says 'odd'"),
    ],
)
def test_every_reason_of_rabbitmq_is_read(reason, attempts, means):
    shop = death("orders", reason, 3, exchange="shop", **{"routing-keys": ["order.paid", "order.all"]})
    told = x_death.read({"x-death": [shop]}, "orders")
    assert (told.source, told.error_type, told.attempts) == ("orders", f"rabbitmq.{reason}", attempts)
    assert told.original == {"exchange": "shop", "routing_key": "order.paid", "queue": "orders", "reason": reason, "count": "3"}
    assert means in told.error
    assert told.reason == f"{reason}: {told.error}"
    assert told.last_failed_at == 1_785_000_000


LATEST_REJECTED = [death("orders", "rejected", 3), death("orders.wait", "expired", 2, 1_785_000_060)]
LATEST_EXPIRED = [death("orders.wait", "expired", 3, 1_785_000_060), death("orders", "rejected", 3)]


@pytest.mark.parametrize("deaths", [LATEST_REJECTED, LATEST_EXPIRED], ids=["rejected last", "expired last"])
@pytest.mark.parametrize("dlq_of", ["orders", "dead-of-all"])
def test_a_message_that_went_round_by_a_queue_for_delays_came_from_the_queue_with_the_consumer(deaths, dlq_of):
    told = x_death.read({"x-death": deaths, "x-first-death-queue": "orders", "x-first-death-reason": "rejected"}, dlq_of)
    assert (told.source, told.attempts) == ("orders", 3)
    assert (told.first_failed_at, told.last_failed_at) == (1_785_000_000, 1_785_000_060)
    assert "orders.wait (expired)" in told.original["deaths"]
    assert (told.original["exchange"], told.original["routing_key"]) == ("", "orders"), "the default exchange has no name"
    assert told.original["first_queue"] == "orders"


def test_a_message_that_expired_on_its_way_came_from_the_queue_of_this_dlq_or_the_latest():
    both = {"x-death": [death("b", "expired"), death("a", "expired")]}
    assert [x_death.read(both, dlq_of).source for dlq_of in ("a", "b", "c")] == ["a", "b", "b"]


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_message_without_the_list_is_known_by_the_headers_beside_it(which):
    told = x_death.read({f"x-{which}-death-queue": "mail", f"x-{which}-death-reason": "rejected", "x-death": "lost"}, "orders")
    assert (told.source, told.error_type) == ("mail", "rabbitmq.rejected")


def test_a_message_that_never_died_tells_nothing():
    assert x_death.read({"x-death": [], "trace": "abc"}, "orders") is None


ENVELOPE: dict[str, Any] = {
    "original_topic": "orders",
    "original_partition": 3,
    "original_offset": 17,
    "original_key": "customer-7",
    "original_value": "hello",
    "error": "ValueError: total is odd",
    "classification": "PERMANENT",
    "failed_at": "2026-08-01T10:00:00Z",
}


def read(**changed: Any) -> Told:
    told = json_form.read(json.dumps(ENVELOPE | changed).encode(), has_tombstones=True)
    assert told is not None
    return told


def content(**changed: Any) -> Any:
    return read(**changed).content


def test_the_common_envelope_is_read():
    told = read(attempts=4, first_failed_at=1_785_000_000, traceback="Traceback …")
    letter = told.letter(CARRIED, "kafka.Unknown", 5.0)
    assert (letter.body, letter.message.key, letter.message.headers) == (b"hello", "customer-7", {"trace": "abc"})
    assert (letter.error_type, letter.error, letter.traceback) == ("ValueError", "total is odd", "Traceback …")
    assert (letter.classification, letter.attempts) == ("permanent", 4)
    assert (letter.first_failed_at, letter.last_failed_at) == (1_785_000_000.0, 1_785_578_400.0)
    assert letter.original == {
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "key": "customer-7",
        "classification": "PERMANENT",
        "value_encoding": "text",
    }
    assert (letter.id, letter.message.id, letter.source) == ("", "m1", "orders")


def test_a_first_failure_is_never_after_the_last():
    letter = read(first_failed_at="2027-01-01").letter(CARRIED, "kafka.Unknown", 5.0)
    assert letter.first_failed_at == letter.last_failed_at == 1_785_578_400.0


def test_a_first_failure_that_our_counters_know_goes_before_the_one_that_is_told():
    letter = read(first_failed_at=1_785_000_000).letter(CARRIED, "x.Unknown", 5.0, Counters(first_failed_at=7.0, replays=2))
    assert (letter.first_failed_at, letter.replays) == (7.0, 2)


PNG = b"\x89PNG\r\n\x1a\n\0\xff"
IN_BASE64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("changed", "body"),
    [
        ({"original_value": "Grüße"}, "Grüße".encode()),
        ({"original_value": '{"id": 7}'}, b'{"id": 7}'),
        ({"original_value": {"id": 7, "total": 1.5}}, b'{"id": 7, "total": 1.5}'),
        ({"original_value": 12345678901234567890123}, b"12345678901234567890123"),
        ({"original_value": [True, None]}, b"[true, null]"),
        ({"original_value": IN_BASE64, "original_value_encoding": "base64"}, PNG),
        ({"original_value": IN_BASE64, "encoding": "BASE64"}, PNG),
        ({"original_value": base64.b64encode(b'{"id": 7}').decode()}, b'{"id": 7}'),
        ({"original_value": base64.b64encode(b'[{"id": 7}]').decode()}, b'[{"id": 7}]'),
        ({"original_value": IN_BASE64}, IN_BASE64.encode()),
        ({"original_value": "customer"}, b"customer"),
        ({"original_value": "evil"}, b"evil"),
        ({"original_value": "not base64!", "encoding": "base64"}, b"not base64!"),
        ({"original_value": ""}, b""),
    ],
)
def test_the_original_value_may_be_text_json_or_base64(changed, body):
    assert content(**changed).body == body


def test_the_characters_of_a_json_value_stay_as_they_are():
    told = json_form.read(b'{"original_topic":"a","original_value": \t{"z":1.10, "a":"\\u00e9", "a":2e3}\n ,"error":""}')
    assert told.content.body == b'{"z":1.10, "a":"\\u00e9", "a":2e3}'


def test_a_null_is_a_tombstone_where_there_are_any():
    assert content(original_value=None).is_tombstone
    plain = json_form.read(json.dumps(ENVELOPE | {"original_value": None}).encode())
    assert (plain.content.body, plain.content.is_tombstone) == (b"null", False)


@pytest.mark.parametrize(
    ("key", "is_told", "bytes_"),
    [("k", True, b"k"), (None, True, None), (7, True, b"7"), (IN_BASE64, True, IN_BASE64.encode())],
)
def test_the_original_key_may_be_anything(key, is_told, bytes_):
    assert (content(original_key=key).is_key_told, content(original_key=key).key) == (is_told, bytes_)
    assert content(original_key=IN_BASE64, original_key_encoding="base64").key == PNG


def test_an_envelope_that_says_nothing_about_the_key_leaves_that_of_its_own_message():
    without = {name: value for name, value in ENVELOPE.items() if name != "original_key"}
    told = json_form.read(json.dumps(without).encode())
    assert told.message(CARRIED).key == "dlq key"
    assert read(original_key=None).message(CARRIED).key is None


def test_an_error_may_be_a_line_an_object_or_fields_of_its_own():
    assert (read(error="it: failed").error_type, read(error="it: failed").error) == ("", "it: failed")
    assert read(error="shop.errors.OutOfStock: no\nstock").error_type == "shop.errors.OutOfStock"
    told = read(error={"type": "KeyError", "message": "'id'", "traceback": "Traceback …"})
    assert (told.error_type, told.error, told.traceback) == ("KeyError", "'id'", "Traceback …")
    told = read(error="Oops: no", error_type="shop.Oops", stack_trace=["a", "b"])
    assert (told.error_type, told.error, told.traceback) == ("shop.Oops", "Oops: no", "a\nb")


def test_headers_in_an_envelope_are_the_ones_of_the_message():
    assert read(original_headers={"trace": "x", "n": 1}).message(CARRIED).headers == {"trace": "x", "n": "1"}


@pytest.mark.parametrize("word", ["odd", "", None, 7, ["bug"], "x" * 100_000])
def test_a_classification_that_is_none_of_ours_is_a_fact_and_decides_nothing(word):
    told = read(classification=word)
    assert told.classification == "unknown"
    assert len(str(told.original.get("classification", ""))) <= MOST_FACT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b'"original_value"',
        b'["original_topic", "original_value"]',
        b'{"original_value": 1, "original_topic": "orders"}',
        b'{"original_value": 1, "error": "x"}',
        b'{"original_topic": "orders", "error": "x"}',
        b'{"original_topic": "orders", "original_value": "\xff", "error": "x"}',
        b'{"original_topic": "orders", "original_value": "x", "error": "x"',
        b'{"task_name": "shop.charge", "args": "(1,)", "kwargs": {}, "error": "x"}',
        b'{"task_name": "", "args": [], "kwargs": {}, "error": "x"}',
        b'{"task_name": "shop.charge", "args": [], "kwargs": {}}',
    ],
)
def test_a_body_that_is_no_envelope_is_the_message_itself(body):
    assert json_form.read(body) is None


TASK = {
    "task_name": "shop.charge",
    "task_id": "5f0c6d1b",
    "args": [7, "x"],
    "kwargs": {"retry": True},
    "error": "KeyError: 'total'",
    "traceback": "Traceback …",
    "failed_at": 1_785_000_000_123,
}
PROTOCOL_2 = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def test_a_task_in_json_is_shown_and_becomes_the_message_that_celery_would_send():
    told = json_form.read(json.dumps(TASK).encode())
    assert (told.error_type, told.error, told.traceback, told.last_failed_at) == (
        "KeyError",
        "'total'",
        "Traceback …",
        1_785_000_000.123,
    )
    facts = {"task": "shop.charge", "task_id": "5f0c6d1b", "args": '[7, "x"]', "kwargs": '{"retry": true}'}
    assert told.original == facts
    assert json.loads(told.content.body) == [[7, "x"], {"retry": True}, PROTOCOL_2]
    headers = told.content.headers
    assert (headers["task"], headers["id"], headers["lang"]) == ("shop.charge", "5f0c6d1b", "py")
    assert celery.facts(headers, told.content.body).items() >= facts.items(), "our own message is read like one of Celery"


def test_a_task_for_a_broker_without_headers_is_one_text_as_kombu_writes_it():
    told = json_form.read(json.dumps(TASK | {"queue": "billing"}).encode(), has_headers=False)
    message = json.loads(told.content.body)
    assert json.loads(base64.b64decode(message["body"])) == [[7, "x"], {"retry": True}, PROTOCOL_2]
    assert (message["content-type"], message["properties"]["body_encoding"]) == ("application/json", "base64")
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": "billing"}
    assert (told.source, told.content.headers) == ("billing", {})
    assert celery.facts({}, told.content.body)["task"] == "shop.charge"


CELERY = {  # as Celery 5 writes them
    "lang": "py",
    "task": "shop.charge",
    "id": "5f0c6d1b",
    "shadow": None,
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 2,
    "timelimit": [None, None],
    "root_id": "5f0c6d1b",
    "parent_id": None,
    "argsrepr": "(7,)",
    "kwargsrepr": "{}",
    "origin": "gen12@web-1",
    "ignore_result": False,
}
TASK_BODY = json.dumps([[7], {"a": 1}, PROTOCOL_2]).encode()


def test_a_message_of_celery_tells_its_task():
    found = celery.facts(CELERY, TASK_BODY)
    assert found == {
        "task": "shop.charge",
        "task_id": "5f0c6d1b",
        "args": "[7]",
        "kwargs": '{"a": 1}',
        "retries": "2",
        "origin": "gen12@web-1",
    }
    told = celery.with_task(None, found, "it is here")
    assert (told.attempts, told.content) == (3, None)
    assert "shop.charge" in told.rule


def test_a_pickled_task_is_told_by_its_headers_and_never_unpickled():
    assert celery.facts(CELERY, b"\x80\x04]cposix\nsystem\n")["args"] == "(7,)"


@pytest.mark.parametrize("is_on_sqs", [False, True], ids=["Redis", "SQS"])
def test_a_message_of_celery_without_headers_of_its_own_tells_its_task(is_on_sqs):
    body = base64.b64encode(TASK_BODY).decode()
    message = {"body": body, "content-type": "application/json", "headers": CELERY, "properties": {"body_encoding": "base64"}}
    text = json.dumps(message).encode()
    assert celery.facts({}, base64.b64encode(text) if is_on_sqs else text)["args"] == "[7]"


def test_a_message_that_only_has_a_header_named_task_is_not_of_celery():
    assert celery.facts({"task": "wash", "id": "7"}, TASK_BODY) == {}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1_785_000_000, 1_785_000_000.0),
        ("1785000000", 1_785_000_000.0),
        (1_785_000_000.5, 1_785_000_000.5),
        (1_785_000_000_500, 1_785_000_000.5),
        (1_785_000_000_500_000, 1_785_000_000.5),
        (1_785_000_000_500_000_000, 1_785_000_000.5),
        ("2026-08-01T10:00:00Z", 1_785_578_400.0),
        ("2026-08-01T12:00:00+02:00", 1_785_578_400.0),
        ("2026-08-01 10:00:00", 1_785_578_400.0),
        ("yesterday", None),
        ("0001-01-01T00:00:00+23:59", None),
        (-5, None),
        (0, None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        (None, None),
        ([], None),
    ],
)
def test_times_are_read_in_every_unit_and_never_out_of_bounds(value, seconds):
    assert moment(value) == seconds


@pytest.mark.parametrize("value", [-1, "-1", "1e3", "²", "1" * 19, 10**18, 2.0, True, None, b"-1", b"", b"1" * 10_000, []])
def test_what_is_no_number_is_none(value):
    assert number(value) is None
    assert number("17") == number(b"17") == number(17) == 17


def test_names_that_no_queue_can_have_are_none():
    assert [place(value) for value in ("x" * 256, "a\nb", " a", "", "a\0", None)] == [""] * 6
    assert place(b"orders") == "orders"


# Hostile input.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
VALUES = JSON | st.binary(max_size=20)
KAFKA = st.lists(
    st.tuples(
        st.sampled_from(
            [name for name, _ in DLT + RETRY_TOPIC + CONNECT] + ["kafka_", "__connect.errors.", "task", "id", "lang"]
        ),
        st.none() | st.binary(max_size=20),
    ),
    max_size=12,
)
DEATH = st.dictionaries(st.sampled_from(["queue", "reason", "count", "time", "exchange", "routing-keys", "x"]), VALUES)
RABBITMQ = st.fixed_dictionaries(
    {},
    optional={
        "x-death": VALUES | st.lists(DEATH | VALUES, max_size=5),
        **{f"x-{which}-death-{what}": VALUES for which in ("first", "last") for what in ("queue", "reason", "exchange")},
    },
)
FIELDS = [*ENVELOPE, *TASK, "encoding", "error_type", "attempts", "first_failed_at", "original_headers", "queue", "stack_trace"]
ENVELOPES = st.dictionaries(st.sampled_from(FIELDS), JSON).map(lambda fields: json.dumps(fields).encode())
WHOLE = st.builds(
    lambda of, changed: json.dumps(of | changed).encode(),
    st.sampled_from([ENVELOPE, TASK]),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
)


def check(told: Told | None) -> None:
    """It can be shown, stored and compared, and nothing of it is large."""
    if told is None:
        return
    letter = told.letter(CARRIED, "x.Unknown", 7.0, Counters())
    record_text(letter)
    msgspec.json.encode(letter.as_json())
    assert 0 <= letter.attempts <= MOST_COUNTED
    assert 0 <= letter.first_failed_at <= letter.last_failed_at <= MOST_MOMENT
    assert len(letter.error_type) <= NAME_LIMIT
    assert len(letter.error) <= TEXT_LIMIT + 100
    assert len(letter.traceback) <= TRACEBACK_LIMIT + 100
    assert all(0 <= value < 2**63 if isinstance(value, int) else len(value) <= 4_000 for value in letter.original.values())
    assert place(told.source) == told.source


@given(KAFKA)
def test_no_header_of_kafka_breaks_anything(headers):
    check(kafka_headers.read(headers))


@given(RABBITMQ, st.text(max_size=5))
def test_no_header_of_rabbitmq_breaks_anything(headers, source):
    check(x_death.read(headers, source))


@given(ENVELOPES | WHOLE | st.binary(), st.booleans())
@example(json.dumps(ENVELOPE).encode().replace(b'"hello"', b"[" * 5_000 + b"]" * 5_000), True)
@example(b'{"original_topic":"a","original_value":"\\ud800","error":"\\udfff"}', True)
@example(json.dumps(ENVELOPE | {"error": "x" * 10**6, "original_topic": "y" * 10**6}).encode(), True)
def test_no_body_breaks_anything(body, has_headers):
    check(json_form.read(body, has_headers=has_headers, has_tombstones=has_headers))


@given(st.fixed_dictionaries({"lang": VALUES}, optional={name: VALUES for name in CELERY if name != "lang"}), VALUES)
def test_no_header_of_celery_breaks_anything(headers, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    check(celery.with_task(None, celery.facts(headers, data), "it is here"))
    wrapped = json.dumps({"headers": headers, "body": body, "content-type": 1, "properties": body}, default=str).encode()
    check(celery.with_task(None, celery.facts({}, wrapped), "it is here"))


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.binary(max_size=200))
def test_a_value_in_base64_that_says_so_is_always_the_original_bytes(fields, body):
    said = {"original_value": base64.b64encode(body).decode(), "original_value_encoding": "base64", "original_topic": "orders"}
    told = json_form.read(json.dumps(fields | said | {"error": "x"}).encode())
    assert told is None or told.content.body == body


@given(st.binary(max_size=9))
def test_a_number_in_bytes_is_never_negative(data):
    found = from_big_endian(data, 1, 4, 8)
    assert found is None or found >= 0
