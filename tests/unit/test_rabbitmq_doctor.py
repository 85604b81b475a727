"""Does every row of the doctor's tables for RabbitMQ speak up exactly when its trap is there? Without a server: the real ones are
in tests/doctor."""

from types import SimpleNamespace

import pytest

from unpoison.brokers.rabbitmq import doctor
from unpoison.brokers.rabbitmq.doctor import queue_checks, server
from unpoison.brokers.rabbitmq.management import FoundQueue, Policy, VirtualHost
from unpoison.brokers.rabbitmq.topology import queues
from unpoison.brokers.rabbitmq.url import address
from unpoison.port.findings import ADOPTED, examine

WHERE = address("amqp://app:secret@host/shop")
DLX = {"type": "direct", "durable": True, "auto_delete": False, "arguments": {}}
BOUND = [{"destination": "orders.dlq", "routing_key": "orders", "destination_type": "queue"}]


class Api:
    """The management API of a virtual host with one exchange."""

    vhost, user, shown = "shop", "guest", "http://host:15672"

    def __init__(self, dlx=DLX, bound=BOUND, consumers=(), permissions=None):
        self._things = {"exchanges": dlx, "bindings": bound, "consumers": consumers, "permissions": permissions}

    def of_vhost(self, kind, name="", more=""):
        if kind == "exchanges" and name != "dlx":
            return None
        return self._things["bindings" if more else kind]


def vhost(changes=None, *, version=(4, 0), longest=None, without=(), api=None, **ttls):
    """One in order, but for these changes of queues."""
    found = {}
    for name, arguments in queues("orders", version, WHERE):
        if name not in without:
            plain = FoundQueue(name, arguments["x-queue-type"], True, False, False, arguments)
            found[name] = plain._replace(**(changes or {}).get(name, {}))
    ttls = {"message_ttl": None, "dlq_ttl": None, **ttls}
    return VirtualHost("shop", version, ttls["message_ttl"], ttls["dlq_ttl"], longest, api or Api(), found, WHERE)


def told(*given, **more):
    host = vhost(*given, **more)
    return {each.name: each for each in queue_checks.of_family(host, "orders")}


def policy(**definition):
    settings = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"policy": Policy("broad", "", "queues", 0, settings)}


SOURCE = queues("orders", (4, 0), WHERE)[1].arguments
WITHOUT_LETTERS = {key: value for key, value in SOURCE.items() if "dead-letter" not in key}
CASES = {
    "queue-exclusive": ("orders", {"exclusive": True, "durable": False, "auto_delete": True, **policy(expires=9_000)}),
    "queue-not-durable": ("orders", {"durable": False}),
    "queue-auto-delete": ("orders.starts", {"auto_delete": True}),
    "queue-expires": ("orders.dlq.lock", policy(expires=1_500)),
    "stream-queue": ("orders", {"kind": "stream", **policy(max_length=5, message_ttl=5)}),
    "length-limit-drops": ("orders.dlq", policy(max_length=5)),
    "length-limit-refuses": ("orders.suspects", policy(max_length_bytes=5, overflow="reject-publish-dlx")),
    "messages-expire": ("orders.suspects", policy(message_ttl=1_500)),
    "suspects-limit": ("orders.suspects", policy(delivery_limit=4)),
    "dlq-limit": ("orders.dlq.history", policy(delivery_limit=4)),
    "dlq-sends-back": ("orders.dlq", policy(message_ttl=60_000, dead_letter_exchange="elsewhere")),
    "dlq-expires": ("orders.dlq", policy(message_ttl=60_000)),
    "source-limit-deletes": ("orders", {"arguments": WITHOUT_LETTERS}),
    "source-limit-low": ("orders", policy(delivery_limit=19)),
    "dead-letters-loop": ("orders", {"arguments": {**SOURCE, "x-dead-letter-exchange": ""}}),
    "dead-letters-unrouted": ("orders", {"arguments": {**SOURCE, "x-dead-letter-exchange": "gone"}}),
    "at-least-once-off": ("orders", {"arguments": {**SOURCE, "x-dead-letter-strategy": "at-most-once"}}),
    "single-active-consumer": ("orders", {"arguments": {**SOURCE, "x-single-active-consumer": True}}),
    "priority-queue": ("orders", {"arguments": {**SOURCE, "x-max-priority": 5}}),
    "delayed-retry-on": ("orders", policy(delayed_retry_type="failed")),
    "consumer-timeout-too-short": ("orders", policy(consumer_timeout=299_000)),
}
SAYS = {
    "queue-expires": "for 1.5 s (by the policy 'broad')",
    "length-limit-drops": "at most 5 messages (by the policy 'broad'). When it is full RabbitMQ drops the oldest dead letters to",
    "length-limit-refuses": "at most 5 bytes (by the policy 'broad') and refuses more",
    "messages-expire": "for 1.5 s (by the policy 'broad') ",
    "suspects-limit": "a delivery limit of 4 (by the policy 'broad')",
    "dlq-limit": "look 5 deletes them",
    "dlq-sends-back": "to the exchange 'elsewhere' after 60 s (by the policy 'broad')",
    "dlq-expires": "after 60 s (by the policy 'broad'), whether anyone has looked or not. The URL has no dlq_ttl",
    "source-limit-deletes": "came back 101 times is deleted",
    "source-limit-low": "a delivery limit of 19 (by the policy 'broad')",
    "dead-letters-unrouted": "to the exchange 'gone', which does not exist",
    "at-least-once-off": "(dead-letter-strategy at-most-once, overflow reject-publish)",
    "priority-queue": "has 5 priorities",
    "delayed-retry-on": "delayed-retry-type failed",
    "consumer-timeout-too-short": "within 299 s (by the policy 'broad'), but a handler may run for 300 s unless",
}


def test_a_source_in_order_has_no_findings():
    assert told() == told(version=(3, 10)) == {}


@pytest.mark.parametrize("name", CASES)
def test_a_trap_is_told_by_its_name_and_nothing_else_is(name):
    queue, changes = CASES[name]
    seen = told({queue: changes})
    assert set(seen) == {name}
    assert repr(queue) in seen[name].problem
    assert SAYS.get(name, "") in seen[name].problem


FIXES = {
    "queue-not-durable": "delete_queue -p shop orders",
    "queue-auto-delete": "delete_queue -p shop orders.starts --if-empty",
    "queue-expires": "unpoison-orders.dlq.lock",
    "stream-queue": "delete_queue -p shop orders",
    "length-limit-drops": '{"delivery-limit": -1}',
    "messages-expire": "unpoison-orders.suspects",
    "dlq-limit": "unpoison-orders.dlq.history",
    "dlq-sends-back": "unpoison-orders.dlq",
    "dlq-expires": "If it is meant, add dlq_ttl=60 to the URL. If not: while everything runs",
    "source-limit-deletes": '"dead-letter-exchange": "dlx"',
    "source-limit-low": '"delivery-limit": 100',
    "dead-letters-loop": "delete_queue -p shop orders",
    "dead-letters-unrouted": "with the key 'orders'",
    "single-active-consumer": "delete_queue -p shop orders",
    "delayed-retry-on": "unpoison-orders",
    "consumer-timeout-too-short": "consumer",
}


@pytest.mark.parametrize("name", FIXES)
def test_its_fix_names_the_queue_and_what_to_set(name):
    queue, changes = CASES[name]
    assert FIXES[name] in told({queue: changes})[name].fix


def test_an_operator_policy_is_mended_where_it_is():
    operator = Policy("ops", "", "queues", 0, {"max-length": 5})
    fix = told({"orders.dlq": {"operator": operator}})["length-limit-drops"].fix
    assert fix.splitlines()[1:] == ["rabbitmqctl clear_operator_policy -p shop ops"]


def test_a_classic_source_and_classic_suspects_are_told_each_in_its_own_way():
    assert set(told({"orders": {"kind": "classic", "arguments": {}}})) == {"classic-queue"}
    assert set(told({"orders.suspects": {"kind": "classic", "arguments": {}}})) == {"suspects-not-quorum"}


@pytest.mark.parametrize(
    ("changes", "more", "names"),
    [
        ({"orders": policy(message_ttl=60_000)}, {"message_ttl": 60.0}, set()),
        ({"orders": policy(message_ttl=59_999)}, {"message_ttl": 60.0}, {"messages-expire"}),
        ({"orders.suspects": policy(message_ttl=60_000)}, {"message_ttl": 60.0}, {"messages-expire"}),
        ({"orders.dlq": policy(message_ttl=60_000)}, {"dlq_ttl": 60.0}, set()),
        ({"orders.dlq": policy(message_ttl=59_999)}, {"dlq_ttl": 60.0}, {"dlq-expires"}),
        ({"orders.dlq.history": policy(message_ttl=5)}, {}, set()),
        ({"orders.dlq.history": policy(message_ttl=5, dead_letter_exchange="elsewhere")}, {}, set()),
        ({"orders": {"kind": "stream", **policy(delayed_retry_type="failed")}}, {}, {"stream-queue"}),
        ({"orders.dlq": policy(consumer_timeout=5)}, {}, set()),
        ({"orders.suspects": policy(message_ttl=60_000, dead_letter_exchange="x")}, {"message_ttl": 60.0}, {"messages-expire"}),
        ({"orders": policy(max_length=5)}, {}, set()),
        ({"orders.busy": policy(max_length=0)}, {}, set()),
        ({"orders": policy(delivery_limit=20)}, {}, set()),
        ({"orders": policy(delivery_limit=-1)}, {}, set()),
        ({"orders": policy(delayed_retry_type="disabled")}, {}, set()),
        ({"orders": policy(consumer_timeout=300_000)}, {}, set()),
        ({"orders": policy(consumer_timeout=300_000)}, {"longest": 301.0}, {"consumer-timeout-too-short"}),
        ({}, {"longest": 1_800.0}, set()),
        ({}, {"longest": 1_801.0}, {"consumer-timeout-unseen"}),
        ({}, {"api": Api(bound=[])}, {"dlq-unbound", "dead-letters-unrouted"}),
        ({}, {"api": Api(bound=[]), "without": ("orders.dlq",)}, {"dead-letters-unrouted"}),
    ],
)
def test_where_a_trap_begins_and_ends(changes, more, names):
    assert set(told(changes, **more)) == names


def test_what_the_server_shows_of_a_consumer_counts_before_its_default():
    consumers = [{"queue": {"name": "orders"}, "consumer_timeout": each} for each in (900_000, 100_000)]
    assert (
        "within 100 s (as the server says of its consumers)"
        in told(api=Api(consumers=consumers))["consumer-timeout-too-short"].problem
    )


TABLES = {
    **{name: getattr(server, name) for name in ("CONNECTION", "ALARMS")},
    **{name: getattr(server, name) for name in ("DELAY_EXCHANGE", "DELAY_QUEUE")},
    **{name: getattr(queue_checks, name) for name in ("ANY_QUEUE", "SUSPECTS", "LETTERS", "SOURCE", "TIMEOUTS")},
    "BY_AMQP": doctor.BY_AMQP,
    "alone": (server.FEATURE_FLAG_OFF, server.DLX_DIFFERS, server.MISSING_RIGHTS, queue_checks.DLQ_UNBOUND),
}
LOSING = {
    *ADOPTED,
    "suspects-consumed",
    "server-too-old",
    "feature-flag-off",
    "delay-queue-differs",
    "consumer-timeout-too-short",
}


@pytest.mark.parametrize("check", [each for table in TABLES.values() for each in table], ids=lambda check: check.name)
def test_what_loses_messages_or_stops_a_server_is_marked_so(check):
    keeps_consumers = {"delay-queues-missing"}
    assert check.loses is (check.name in LOSING and check.name not in keeps_consumers)
    assert check.stops is (check.name in ("memory-alarm", "disk-alarm"))
    assert check.name in doctor.NAMES


@pytest.mark.parametrize(
    ("version", "heartbeat", "names"),
    [
        ((3, 9), 30, {"server-too-old"}),
        ((3, 10), 30, {"server-unmaintained"}),
        ((3, 13), 0, {"server-unmaintained", "heartbeat-off"}),
        ((4, 0), 30, set()),
    ],
)
def test_what_a_connection_tells(version, heartbeat, names):
    connection = SimpleNamespace(version=version, wire=SimpleNamespace(params=SimpleNamespace(heartbeat=heartbeat)))
    assert {each.name for each in examine(server.CONNECTION, connection)} == names


@pytest.mark.parametrize(
    ("dlx", "says"),
    [
        ({"type": "fanout"}, "its type is fanout"),
        ({"durable": False}, "it is not durable"),
        ({"auto_delete": True}, "it deletes itself"),
    ],
)
def test_an_exchange_for_dead_letters_that_differs(dlx, says):
    (found,) = server.of_dlx(vhost(api=Api(dlx=DLX | dlx)))
    assert says in found.problem
    assert found.fix.endswith("-X DELETE http://host:15672/api/exchanges/shop/dlx")
    assert server.of_dlx(vhost(api=Api(dlx=DLX | {"type": "topic"}))) == server.of_dlx(vhost(api=Api(dlx=None))) == []


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({"type": "headers", "missing": ""}, set()),
        ({"type": "headers", "missing": "unpoison.delay.3s"}, {"delay-queues-missing"}),
        ({"type": "fanout", "missing": "unpoison.delay.3s"}, {"delay-queue-differs"}),
    ],
)
def test_an_exchange_of_delays(facts, names):
    assert {each.name for each in examine(server.DELAY_EXCHANGE, {"name": "unpoison.delay.1", "removal": "", **facts})} == names


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"configure": ".*", "write": ".*", "read": ".*"}, None),
        ({"configure": "^orders|^dlx$|^unpoison", "write": ".*", "read": ".*"}, None),
        (
            {"configure": "^orders", "write": ".*", "read": ".*"},
            "lacks: configure on dlx, unpoison.delay.0, unpoison.delay.0.1s. That is",
        ),
        ({"configure": ".*", "write": "^(?!amq)", "read": ".*"}, "lacks: write on amq.default. A consumer or publisher"),
        ({}, "lacks: configure on orders, orders.dlq,"),
    ],
)
def test_the_rights_of_the_user(given, says):
    found = server.of_rights(WHERE, Api(permissions=given), ["orders"])
    assert [says in each.problem for each in found] == ([True] if says else [])


def test_rights_are_granted_beside_those_that_the_user_has():
    (found,) = server.of_rights(WHERE, Api(permissions={"configure": "^mine$", "write": ".*", "read": "^$"}), ["orders"])
    ours = r"^(orders)(\.dlq|\.dlq\.history|\.suspects|\.starts|\.busy|\.delayed|\.dlq\.lock|\.made)?$|^dlx$|^unpoison\."
    assert found.fix.endswith(f"set_permissions -p shop app '^mine$|{ours}' '.*' '{ours}'")
    (refused,) = server.of_refusal(WHERE, "orders", "access refused")
    assert refused.problem.startswith(
        "RabbitMQ refuses 'app' a look at 'orders': access refused. A consumer or publisher of this"
    )
    assert refused.fix.endswith(f"set_permissions -p shop app '{ours}' '{ours}|^amq\\.default$' '{ours}'")
