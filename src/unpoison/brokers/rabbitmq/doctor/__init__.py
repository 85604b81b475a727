"""Examine a RabbitMQ server, as far as this user may see it. Nothing is declared, published or consumed for it.

AMQP tells which queues there are; the management API, where it answers, tells what they are like.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from shlex import quote
from typing import NamedTuple

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.doctor import queue_checks, server
from unpoison.brokers.rabbitmq.doctor.queue_checks import of_exclusive, of_family
from unpoison.brokers.rabbitmq.doctor.queue_facts import START
from unpoison.brokers.rabbitmq.errors import ACCESS_REFUSED, LOCKED, NOT_FOUND, Refused
from unpoison.brokers.rabbitmq.management import Management, Unanswered, VirtualHost, queues_of, sources_in
from unpoison.brokers.rabbitmq.names import check_name, dlq_of, purposes, suspects_of
from unpoison.brokers.rabbitmq.url import Address, address
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port import findings
from unpoison.port.broker import Finding
from unpoison.port.findings import Check, loss

BY_AMQP = (
    Check(
        "dlq-missing",
        lambda of: of["dlq"],
        "{of[dlq]!r} does not exist. A running consumer is paused at the first dead letter of {of[source]!r}; one that starts "
        "creates it, and does not start with create=False.",
        START,
    ),
    Check(
        "queues-missing",
        lambda of: of["others"],
        "Queues that unpoison needs for {of[source]!r} do not exist: {of[others]}. A running consumer is paused when it needs "
        "one; one that starts creates them, and does not start with create=False.",
        START,
    ),
    loss(
        "suspects-consumed",
        lambda of: of["consumers"],
        "{of[consumers]} consumers that are not unpoison's take messages from {of[suspects]!r}, which unpoison pulls one at a "
        "time. What they take was under suspicion: it runs there uncounted, and if it kills them, for ever.",
        "End them; to see who they are:\nrabbitmqctl list_consumers -p {of[vhost]}",
    ),
)
NAMES = (
    *findings.names_of(server.CONNECTION, server.ALARMS, (server.FEATURE_FLAG_OFF,), BY_AMQP),
    "source-missing",
    "many-dead-letters",
    *findings.names_of(queue_checks.SOURCE, queue_checks.ANY_QUEUE, (queue_checks.DLQ_UNBOUND,), queue_checks.LETTERS),
    *findings.names_of(queue_checks.SUSPECTS, queue_checks.TIMEOUTS),
    *findings.names_of((server.DLX_DIFFERS,), server.DELAY_QUEUE, server.DELAY_EXCHANGE, (server.MISSING_RIGHTS,)),
)
DEEP = ()

START_WITHIN = 2.0
"""Seconds for a question to the management API while a consumer starts."""

OPTION = "add management=http://name:password@host:15672 to the options of the URL."
UNSEEN = (
    "the types, arguments, policies and bindings of queues, how long the server waits for acknowledgements, alarms, and rights"
)


def examine(url: str, sources: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG001
    """All that is found in this virtual host. Nothing here takes long, so `deep` adds nothing."""
    where = address(url)
    for source in sources:
        check_name(where, source)
    management = Management(where)
    with closing(Connection(where, "doctor")) as connection:
        found = findings.examine(server.CONNECTION, connection)
        try:
            vhost = _virtual_host(where, connection, management, longest)
        except Unanswered as why:
            found.append(_cannot_ask(management, str(why), sources))
            return [*found, *(each for source in sources for each in _by_amqp(connection, where, source, None))]
        chosen = sources or sources_in(vhost.queues)
        found += [each for source in chosen for each in _by_amqp(connection, where, source, vhost)]
        return found + _every(where, vhost, chosen)


def known_sources(url: str) -> Sequence[str]:
    """The sources that this virtual host has been used for. Only the management API can list queues."""
    where = address(url)
    management = Management(where)
    with closing(Connection(where, "doctor")) as connection:
        try:
            return sources_in(_virtual_host(where, connection, management, None).queues)
        except Unanswered as why:
            told = _cannot_ask(management, str(why), ())
            raise ConfigError(
                f"Which sources there are, only RabbitMQ's management API can tell, and it cannot be asked: {why} Name the "
                f"source with --source NAME (with unpoison status: as its argument). Or let the API be asked. {told.fix}"
            ) from None


def adopted(url: str, source: str) -> Sequence[Finding]:
    """As far as the management API tells, and soon: who cannot reach it must not wait for that at every start."""
    where = address(url)
    with closing(Connection(where, "start")) as connection:
        try:
            vhost = _virtual_host(where, connection, Management(where, START_WITHIN), None)
            return list(of_family(vhost, source))
        except Unanswered as why:
            raise BrokerUnavailable(f"{why} To see more, {OPTION}") from None


def _virtual_host(where: Address, connection: Connection, management: Management, longest: float | None) -> VirtualHost:
    """What the management API knows, if it is that of this server."""
    said = management.get("overview") or {}
    names = said.get("cluster_name"), (connection.wire.server_properties or {}).get("cluster_name")
    if names[0] != names[1]:
        raise Unanswered(f"At {management.shown} another server answers: {names[0]!r} and not {names[1]!r}.")
    ttls = where.message_ttl, where.dlq_ttl
    return VirtualHost(where.vhost, connection.version, *ttls, longest, management, queues_of(management), where)


def _cannot_ask(management: Management, why: str, sources: Sequence[str]) -> Finding:
    if "Not management user" in why:
        fix = f"Let this user ask, or name another one: {OPTION}\nrabbitmqctl set_user_tags {quote(management.user)} management"
    elif "refuses user" in why:
        fix = f"Check its password, or name another user: {OPTION}"
    else:
        fix = f"Say where it is: {OPTION} If it is nowhere:\nrabbitmq-plugins enable rabbitmq_management"
    what = UNSEEN if sources else f"which sources there are (name them with --source), {UNSEEN}"
    return findings.cannot_look(what, f"They are seen through the management API only. {why}", fix)


class Look(NamedTuple):
    """What the server says when asked for one queue: how much is in it, or why not."""

    ready: int = 0
    consumers: int = 0
    code: int = 0
    said: str = ""


def _look(connection: Connection, queue: str) -> Look:
    """Changes nothing: a queue that does not exist is not created."""
    channel = connection.channel()
    try:
        answer = channel.look_at(queue)
        return Look(int(answer.message_count), int(answer.consumer_count))
    except Refused as refused:
        return Look(code=refused.code, said=refused.text)
    finally:
        channel.close()


def _by_amqp(connection: Connection, where: Address, source: str, vhost: VirtualHost | None) -> Iterator[Finding]:
    """What AMQP alone tells of a source, by asking for its queues."""
    code = _look(connection, source).code
    if code == NOT_FOUND:
        if vhost is None:
            yield _missing(where, source)
        else:
            yield from findings.of_sources([source], _others(vhost), where.shown)
        return
    if code == LOCKED and vhost is None:
        yield from of_exclusive(source)
    looks = {name: _look(connection, name) for name in purposes(where, source)}
    if forbidden := [look for look in looks.values() if look.code == ACCESS_REFUSED]:
        yield from server.of_refusal(where, source, forbidden[0].said)
        return
    yield from findings.examine(BY_AMQP, _facts(where, source, looks))
    yield from findings.of_dead_letters({source: looks[dlq_of(where, source)].ready}, where.shown)


def _facts(where: Address, source: str, looks: Mapping[str, Look]) -> dict[str, str | int]:
    missing = [name for name in looks if looks[name].code == NOT_FOUND]
    dlq, suspects = dlq_of(where, source), suspects_of(source)
    return {
        "source": source,
        "dlq": dlq if dlq in missing else "",
        "others": ", ".join(name for name in missing if name != dlq),
        "suspects": suspects,
        "consumers": looks[suspects].consumers,
        "vhost": quote(where.vhost),
    }


def _missing(where: Address, source: str) -> Finding:
    """About a source that does not exist, where nobody can tell which other queues there are."""
    return Finding(
        "source-missing",
        f"There is no queue {source!r} in {where.shown}. Nothing was ever published to it: if another program writes to a name "
        "that differs, its messages wait there and nobody consumes them.",
        "Compare the name in @app.consumer with the one that is published to. The first publish or run creates the source.",
    )


def _others(vhost: VirtualHost) -> list[str]:
    """The queues that may be meant: not those that unpoison has made beside its sources."""
    ours = {queue.name for source in vhost.queues for queue in vhost.family(source) if queue.role != "source"}
    return [name for name in vhost.queues if name not in ours and not name.startswith("unpoison.delay.")]


def _every(where: Address, vhost: VirtualHost, chosen: Sequence[str]) -> list[Finding]:
    """Each question by itself: one that this user may not ask does not prevent the others."""
    questions: dict[str, Callable[[], Iterable[Finding]]] = {
        "alarms": partial(server.of_alarms, vhost.management),
        "feature flags": partial(server.of_flags, vhost.management, vhost.version),
        "the dead-letter exchange": partial(server.of_dlx, vhost),
        "the queues of sources": lambda: (each for source in chosen for each in of_family(vhost, source)),
        "the delay queues": partial(server.of_delays, vhost),
        "the rights of this user": partial(server.of_rights, where, vhost.management, chosen),
    }
    found: list[Finding] = []
    for what, ask in questions.items():
        try:
            found += ask()
        except Unanswered as why:
            found.append(findings.cannot_look(what, str(why), f"Ask as a user who may see it: {OPTION}"))
    return found
