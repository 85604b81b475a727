"""The classifier beside the real exceptions of message brokers' clients, raised by the clients themselves where that is cheap."""

import asyncio

import aiokafka
import aiokafka.errors
import amqp.exceptions
import confluent_kafka
import confluent_kafka.error
import confluent_kafka.serialization
import kombu.exceptions
import kombu.serialization
import nats
import nats.errors
import nats.js.errors
import pika
import pika.exceptions
import pytest
from kombu.connection import Connection

from tests.unit import classifying
from tests.unit.classifying import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, check, raised, table
from unpoison.classify.classifier import classify

closed_port = pytest.fixture(classifying.closed_port)


def test_a_rabbitmq_server_that_is_away_is_transient(closed_port):
    def by_kombu():
        with Connection(f"amqp://guest:guest@127.0.0.1:{closed_port}//") as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, interval_max=0)

    check(raised(pika.BlockingConnection, pika.ConnectionParameters("127.0.0.1", closed_port)), TRANSIENT)
    error = raised(by_kombu)
    assert isinstance(error, kombu.exceptions.OperationalError)
    check(error, TRANSIENT)
    assert "around ConnectionRefusedError" in classify(error).rule


@table(
    (pika.exceptions.AMQPHeartbeatTimeout(), TRANSIENT),
    (pika.exceptions.StreamLostError("lost"), TRANSIENT),
    (pika.exceptions.ProbableAuthenticationError(), TRANSIENT),
    (pika.exceptions.ConnectionBlockedTimeout(), TRANSIENT),
    (pika.exceptions.ConnectionClosedByBroker(320, "CONNECTION_FORCED - broker forced connection closure"), TRANSIENT),
    (pika.exceptions.ConnectionWrongStateError(), TRANSIENT),
    (pika.exceptions.ChannelWrongStateError("Channel is closed."), TRANSIENT),
    (pika.exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no queue"), PERMANENT),
    (pika.exceptions.ChannelClosedByBroker(403, "ACCESS_REFUSED"), PERMANENT),
    (pika.exceptions.ChannelClosedByBroker(406, "PRECONDITION_FAILED - message size"), PERMANENT),
    (pika.exceptions.ChannelClosedByBroker(405, "RESOURCE_LOCKED"), TRANSIENT),
    (pika.exceptions.ChannelClosedByBroker(541, "INTERNAL_ERROR"), TRANSIENT),
    (pika.exceptions.ChannelClosedByBroker(999, "nobody knows it"), UNKNOWN),
    (pika.exceptions.NackError([]), TRANSIENT),
    (pika.exceptions.UnroutableError([]), PERMANENT),
    (pika.exceptions.ShortStringTooLong("x"), PERMANENT),
    (pika.exceptions.UnsupportedAMQPFieldException([], object()), PERMANENT),
    (pika.exceptions.DuplicateConsumerTag("x"), BUG),
    (pika.exceptions.AMQPError(), UNKNOWN),
)
def test_pika_goes_by_reply_code_and_else_by_class(error, expected):
    check(error, expected)


def caused(outer, cause):
    outer.__cause__ = cause
    return outer


@table(
    (amqp.exceptions.error_for_code(320, "forced", (0, 0), amqp.exceptions.ConnectionError), TRANSIENT),
    (amqp.exceptions.error_for_code(404, "no queue", (50, 10), amqp.exceptions.ChannelError), PERMANENT),
    (amqp.exceptions.error_for_code(406, "size", (60, 40), amqp.exceptions.ChannelError), PERMANENT),
    (amqp.exceptions.error_for_code(403, "no right", (60, 40), amqp.exceptions.ChannelError), PERMANENT),
    (amqp.exceptions.error_for_code(403, "login", (0, 0), amqp.exceptions.ConnectionError), TRANSIENT),
    (amqp.exceptions.error_for_code(405, "locked", (50, 10), amqp.exceptions.ChannelError), TRANSIENT),
    (amqp.exceptions.error_for_code(311, "too large", (60, 40), amqp.exceptions.ChannelError), PERMANENT),
    (amqp.exceptions.error_for_code(541, "internal", (0, 0), amqp.exceptions.ConnectionError), TRANSIENT),
    (amqp.exceptions.error_for_code(530, "no such vhost", (10, 40), amqp.exceptions.ConnectionError), UNKNOWN),
    (amqp.exceptions.RecoverableConnectionError("Socket was disconnected"), TRANSIENT),
    (amqp.exceptions.ConnectionError("closed"), TRANSIENT),
    (amqp.exceptions.MessageNacked(), TRANSIENT),
    (caused(kombu.exceptions.OperationalError("x"), amqp.exceptions.NotFound("no exchange")), PERMANENT),
    (kombu.exceptions.OperationalError("made without a cause"), TRANSIENT),
    (kombu.exceptions.ConnectionLimitExceeded(10), TRANSIENT),
    (kombu.exceptions.InconsistencyError("no bindings"), UNKNOWN),
    (kombu.exceptions.NotBoundError(), BUG),
    (kombu.exceptions.MessageStateError("already acknowledged"), BUG),
    (kombu.exceptions.KombuError(), UNKNOWN),
    (raised(kombu.serialization.dumps, {"a": object()}, "json"), PERMANENT),
    (raised(kombu.serialization.loads, b"{", "application/json", "utf-8"), PERMANENT),
    (raised(kombu.serialization.loads, b"x", "application/x-python-serialize", "binary", accept=["json"]), PERMANENT),
)
def test_kombu_and_py_amqp_go_by_reply_code_and_else_by_class(error, expected):
    check(error, expected)


def kafka_error(code):
    return confluent_kafka.KafkaException(confluent_kafka.KafkaError(code))


KAFKA = confluent_kafka.KafkaError


@table(
    (kafka_error(KAFKA._TRANSPORT), TRANSIENT),
    (kafka_error(KAFKA._ALL_BROKERS_DOWN), TRANSIENT),
    (kafka_error(KAFKA._MSG_TIMED_OUT), TRANSIENT),
    (kafka_error(KAFKA._QUEUE_FULL), TRANSIENT),
    (kafka_error(KAFKA._AUTHENTICATION), TRANSIENT),
    (kafka_error(KAFKA.UNKNOWN_TOPIC_OR_PART), TRANSIENT),
    (kafka_error(KAFKA.LEADER_NOT_AVAILABLE), TRANSIENT),
    (kafka_error(KAFKA.NOT_ENOUGH_REPLICAS), TRANSIENT),
    (kafka_error(KAFKA.REBALANCE_IN_PROGRESS), TRANSIENT),
    (kafka_error(KAFKA.REQUEST_TIMED_OUT), TRANSIENT),
    (kafka_error(KAFKA.THROTTLING_QUOTA_EXCEEDED), THROTTLED),
    (kafka_error(KAFKA.MSG_SIZE_TOO_LARGE), PERMANENT),
    (kafka_error(KAFKA.TOPIC_AUTHORIZATION_FAILED), PERMANENT),
    (kafka_error(KAFKA.INVALID_RECORD), PERMANENT),
    (kafka_error(KAFKA.POLICY_VIOLATION), PERMANENT),
    (kafka_error(KAFKA.UNSUPPORTED_VERSION), PERMANENT),
    (kafka_error(KAFKA.PRODUCER_FENCED), UNKNOWN),
    (kafka_error(KAFKA.UNKNOWN), UNKNOWN),
    (confluent_kafka.KafkaException("made without an error"), UNKNOWN),
    (confluent_kafka.error.ProduceError(KAFKA(KAFKA.NOT_ENOUGH_REPLICAS)), TRANSIENT),
    (confluent_kafka.error.ValueSerializationError(), PERMANENT),
    (confluent_kafka.serialization.SerializationError("no schema"), PERMANENT),
    (raised(confluent_kafka.Producer({"message.max.bytes": 1_000}).produce, "orders", b"x" * 2_000), PERMANENT),
    (raised(confluent_kafka.Producer, {"no.such.setting": 1}), PERMANENT),
)
def test_confluent_kafka_goes_by_the_code_of_its_error(error, expected):
    check(error, expected)


def test_a_kafka_server_that_is_away_is_transient(closed_port):
    quiet = {"bootstrap.servers": f"127.0.0.1:{closed_port}", "log_level": 0}
    check(raised(confluent_kafka.Producer(quiet, logger=None).list_topics, timeout=0.05), TRANSIENT)

    async def start():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{closed_port}")
        try:
            await producer.start()
        finally:
            await producer.stop()

    error = raised(asyncio.run, start())
    assert isinstance(error, aiokafka.errors.KafkaConnectionError)
    check(error, TRANSIENT)


@table(
    (aiokafka.errors.KafkaTimeoutError(), TRANSIENT),
    (aiokafka.errors.NodeNotReadyError(), TRANSIENT),
    (aiokafka.errors.NotLeaderForPartitionError(), TRANSIENT),
    (aiokafka.errors.NotEnoughReplicasError(), TRANSIENT),
    (aiokafka.errors.RebalanceInProgressError(), TRANSIENT),
    (aiokafka.errors.UnknownTopicOrPartitionError(), TRANSIENT),
    (aiokafka.errors.CommitFailedError(), TRANSIENT),
    (aiokafka.errors.SaslAuthenticationFailed(), TRANSIENT),
    (aiokafka.errors.QuotaViolationError(), THROTTLED),
    (aiokafka.errors.MessageSizeTooLargeError(), PERMANENT),
    (aiokafka.errors.RecordTooLargeError(), PERMANENT),
    (aiokafka.errors.InvalidTopicError(), PERMANENT),
    (aiokafka.errors.TopicAuthorizationFailedError(), PERMANENT),
    (aiokafka.errors.IllegalStateError(), BUG),
    (aiokafka.errors.UnknownError(), UNKNOWN),
    (aiokafka.errors.ProducerFenced(), UNKNOWN),
)
def test_aiokafka_goes_by_code_and_else_by_class(error, expected):
    check(error, expected)


def test_a_nats_server_that_is_away_is_transient(closed_port):
    async def connect():
        async def ignore(error): ...

        options = {"max_reconnect_attempts": 1, "reconnect_time_wait": 0, "error_cb": ignore}
        await nats.connect(f"nats://127.0.0.1:{closed_port}", **options)

    error = raised(asyncio.run, connect())
    assert isinstance(error, nats.errors.NoServersError)
    check(error, TRANSIENT)


def jetstream(code, detail=None):
    """What nats-py makes of an answer of JetStream."""
    return raised(nats.js.errors.APIError.from_error, {"code": code, "err_code": detail, "description": "text"})


@table(
    (nats.errors.TimeoutError(), TRANSIENT),
    (nats.errors.FlushTimeoutError(), TRANSIENT),
    (nats.errors.NoRespondersError(), TRANSIENT),
    (nats.errors.UnexpectedEOF(), TRANSIENT),
    (nats.errors.ConnectionClosedError(), TRANSIENT),
    (nats.errors.OutboundBufferLimitError(), TRANSIENT),
    (nats.errors.AuthorizationError(), TRANSIENT),
    (nats.errors.SecureConnFailedError(), TRANSIENT),
    (nats.errors.MaxPayloadError(), PERMANENT),
    (nats.errors.BadSubjectError(), PERMANENT),
    (nats.errors.MsgAlreadyAckdError(), BUG),
    (nats.errors.NotJSMessageError(), BUG),
    (nats.errors.Error(), UNKNOWN),
    (nats.js.errors.NoStreamResponseError(), TRANSIENT),
    (nats.js.errors.FetchTimeoutError(), TRANSIENT),
    (nats.js.errors.ServiceUnavailableError(), TRANSIENT),
    (nats.js.errors.NotFoundError(), PERMANENT),
    (nats.js.errors.BucketNotFoundError(), PERMANENT),
    (nats.js.errors.InvalidKeyError("x"), PERMANENT),
    (nats.js.errors.APIError(), UNKNOWN),
    (jetstream(503, 10008), TRANSIENT),
    (jetstream(500), TRANSIENT),
    (jetstream(404, 10059), PERMANENT),
    (jetstream(400, 10025), PERMANENT),
    (jetstream(400, 10071), TRANSIENT),
    (jetstream(429), THROTTLED),
    (jetstream(403), PERMANENT),
)
def test_nats_goes_by_jetstreams_code_and_else_by_class(error, expected):
    check(error, expected)
