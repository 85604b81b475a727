"""What must an administrator create in a Kafka cluster, and what must the app's user be allowed to do there?"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from shlex import quote
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    TopicMetadata,
)

from unpoison.brokers.kafka.broker import KafkaBroker
from unpoison.brokers.kafka.checks import server_settings
from unpoison.brokers.kafka.cluster_queries import ANSWER_WITHIN, ClusterQueries
from unpoison.brokers.kafka.errors import result_within
from unpoison.brokers.kafka.names import Names
from unpoison.brokers.kafka.topology import create_options, planned_topics
from unpoison.brokers.kafka.url import Address
from unpoison.errors import BrokerUnavailable
from unpoison.port.provisioning import Needs, Step, no_user

SETUP = """\
# Kafka's own programs, such as /opt/kafka/bin/kafka-topics.sh, must be on the PATH. How an administrator logs in stands in a file
# of settings (security.protocol, sasl.jaas.config …), if there is a login: KAFKA_ADMIN=admin.properties sh FILE
server={servers}
topics() {{ kafka-topics.sh --bootstrap-server "$server" ${{KAFKA_ADMIN:+--command-config "$KAFKA_ADMIN"}} "$@"; }}
acls() {{ kafka-acls.sh --bootstrap-server "$server" ${{KAFKA_ADMIN:+--command-config "$KAFKA_ADMIN"}} "$@"; }}"""

CLUSTER = "kafka-cluster"
TOPIC_RIGHTS = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
WORDS = {AclOperation.READ: "Read", AclOperation.WRITE: "Write", AclOperation.DESCRIBE_CONFIGS: "DescribeConfigs"}


class Right(NamedTuple):
    """A permission for operations on resources of one kind. `Read` and `Write` include `Describe`."""

    kind: ResourceType
    names: tuple[str, ...]
    operations: tuple[AclOperation, ...]
    why: str
    is_prefix: bool = False
    """Whether the names are prefixes."""


class Existing(NamedTuple):
    """What exists, as far as this user may see. `acls` are all that the cluster has; None if this user may not see them."""

    topics: Mapping[str, TopicMetadata]
    acls: Sequence[AclBinding] | None = None
    checks_rights: bool = True
    unseen: str = ""


def needs(url: str, sources: Sequence[str], user: str | None = None) -> Needs:
    with closing(KafkaBroker(url)) as broker:
        address = broker.connection.address
        names = [broker.connection.names(source) for source in sources]
        there = _look(broker)
    steps = [step for each in names for step in _topics(each, address, there)]
    user, notes = user or address.options.get("sasl.username"), []
    if there.unseen and address.replicas < 0:
        notes.append(_REPLICAS)
    if not there.checks_rights:
        notes.append("This cluster has no authorizer: every client may do everything, and no rights are granted.")
    elif user is None:
        notes.append(no_user("a principal User:NAME"))
    else:
        steps += [granted(right, user, there) for right in rights(names)]
    setup = SETUP.format(servers=quote(address.options["bootstrap.servers"])).splitlines()
    return Needs(f"Kafka at {address.shown}", steps, tuple(setup), there.unseen, tuple(notes))


_REPLICAS = (
    "The topics get as many replicas as the server gives by default. A source that exists may have more, and its letters should "
    "not be lost sooner than its messages: add replicas=3, or what it has, to the app's URL and print the script again."
)


def rights(names: Sequence[Names]) -> Iterator[Right]:
    """All rights that an app with create=False needs, its operators and the doctor included."""
    topics = tuple(topic for each in names for topic in each.topics)
    why = "to publish, consume, retry, dead-letter and replay, and to check the settings of these topics."
    yield Right(ResourceType.TOPIC, topics, TOPIC_RIGHTS, why)
    groups = {group: None for each in names for group in (each.group, each.retry_group, each.reading)}
    why = "for its consumer groups: of sources, of retries, and of clients that only read."
    yield Right(ResourceType.GROUP, tuple(groups), (AclOperation.READ,), why)
    operators = {f"{each.operators}.": None for each in names}
    why = "for unpoison dlq: each operator is the only member of a group of its own."
    yield Right(ResourceType.GROUP, tuple(operators), (AclOperation.READ,), why, is_prefix=True)
    why = "for unpoison doctor, which looks at the settings of the servers. The app runs without it."
    yield Right(ResourceType.BROKER, (CLUSTER,), (AclOperation.DESCRIBE_CONFIGS,), why)


def _topics(names: Names, address: Address, there: Existing) -> Iterator[Step]:
    for name, topic in planned_topics(names, address, there.topics).items():
        why = f"for source {names.source!r}: {names.purposes[name]}."
        yield Step("topic", name, why, (f"topics --create --if-not-exists {create_options(topic)}",), name in there.topics)


def granted(right: Right, user: str, there: Existing) -> Step:
    """The command that grants a right. It is granted already if an ACL allows it by name, by prefix or for all."""
    words = [f"acls --add --allow-principal {quote(f'User:{user}')}"]
    words += [f"--operation {WORDS[operation]}" for operation in right.operations]
    option = {ResourceType.TOPIC: "--topic {}", ResourceType.GROUP: "--group {}"}.get(right.kind, "--cluster")
    words += [option.format(quote(name)) for name in right.names]
    words += ["--resource-pattern-type prefixed"] if right.is_prefix else []
    exists = there.acls is not None and all(
        any(_allows(acl, right, name, operation, user) for acl in there.acls)
        for name in right.names
        for operation in right.operations
    )
    return Step("rights", user, right.why, (" ".join(words),), exists)


def _allows(acl: AclBinding, right: Right, name: str, operation: AclOperation, user: str) -> bool:
    is_prefix = acl.resource_pattern_type == ResourcePatternType.PREFIXED
    return (
        acl.permission_type == AclPermissionType.ALLOW
        and acl.principal in (f"User:{user}", "User:*")
        and acl.host == "*"
        and acl.restype == right.kind
        and acl.operation in (operation, AclOperation.ALL)
        and (name.startswith(acl.name) if is_prefix else acl.name == "*" or (acl.name == name and not right.is_prefix))
    )


def _look(broker: KafkaBroker) -> Existing:
    try:
        queries = broker.connection.queries
        return Existing(queries.topics(), _acls(queries), _has_authorizer(queries))
    except BrokerUnavailable as error:
        return Existing({}, unseen=str(error))


def _acls(queries: ClusterQueries) -> Sequence[AclBinding] | None:
    anything: Any = None  # the client's types do not know that a filter may leave things open
    every = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything, AclOperation.ANY, AclPermissionType.ANY
    )
    try:
        answer: Future[Sequence[AclBinding]] = queries.admin.describe_acls(every, request_timeout=ANSWER_WITHIN)
        return result_within(answer, 2 * ANSWER_WITHIN)
    except KafkaException:  # this user may not see them
        return None


def _has_authorizer(queries: ClusterQueries) -> bool:
    try:
        return bool(server_settings(queries)["authorizer.class.name"])
    except KafkaException:  # only an authorizer refuses this, so there is one
        return True
