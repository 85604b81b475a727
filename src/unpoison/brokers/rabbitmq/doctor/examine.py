"""What is wrong with this server, as far as this user may see? Nothing is declared, published or consumed for it.

AMQP tells which queues there are; the management API, where it answers, tells what they are like.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from shlex import quote

from unpoison.brokers.rabbitmq import provisioning
from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.doctor import queues, server, sources
from unpoison.brokers.rabbitmq.errors import LOCKED, NOT_FOUND
from unpoison.brokers.rabbitmq.management import Family, Management, Unanswered, VirtualHost, queues_of, sources_in
from unpoison.brokers.rabbitmq.names import check_name
from unpoison.brokers.rabbitmq.url import Address, address
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.port import findings
from unpoison.port.broker import Finding

NAMES = (
    *server.SERVER,
    *queues.BY_AMQP,
    *sources.SOURCES,
    *queues.ANY_QUEUE,
    *queues.DEAD_LETTERS,
    *queues.SUSPECTS,
    *server.DELAYS,
    *sources.TIMEOUTS,
    *provisioning.RIGHTS,
)
DEEP = ()

START_WITHIN = 2.0
"""Seconds for a question to the management API while a consumer starts."""

OPTION = "add management=http://name:password@host:15672 to the options of the URL."
UNSEEN = (
    "the types, arguments, policies and bindings of queues, how long the server waits for acknowledgements, alarms, and rights"
)


def examine(  # every broker is asked the same
    url: str,
    sources: Sequence[str],
    longest: float | None,
    *,
    deep: bool = False,  # noqa: ARG001
) -> Sequence[Finding]:
    """All that is found in this virtual host. Nothing here takes long, so `deep` adds nothing."""
    where = address(url)
    for source in sources:
        check_name(source)
    management = Management(where)
    with closing(Connection(where, "doctor")) as connection:
        found = list(server.of_connection(connection))
        try:
            vhost = _virtual_host(where, connection, management, longest)
        except Unanswered as why:
            found.append(_cannot_ask(management, str(why), sources))
            return [*found, *(each for source in sources for each in _by_amqp(connection, where, source, None))]
        chosen = sources or sources_in(vhost.queues)
        found += [each for source in chosen for each in _by_amqp(connection, where, source, vhost)]
        return found + _every(_checks(where, vhost, chosen))


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
                f"source with --source NAME. Or let the API be asked. {told.fix}"
            ) from None


def adopted(url: str, source: str) -> Sequence[Finding]:
    """As far as the management API tells, and soon: who cannot reach it must not wait for that at every start."""
    where = address(url)
    with closing(Connection(where, "start")) as connection:
        try:
            vhost = _virtual_host(where, connection, Management(where, START_WITHIN), None)
            return list(_of_family(vhost, vhost.family(source)))
        except Unanswered as why:
            raise BrokerUnavailable(f"{why} To see more, {OPTION}") from None


def _virtual_host(where: Address, connection: Connection, management: Management, longest: float | None) -> VirtualHost:
    """What the management API knows, if it is that of this server."""
    said = management.get("overview") or {}
    names = said.get("cluster_name"), (connection.wire.server_properties or {}).get("cluster_name")
    if names[0] != names[1]:
        raise Unanswered(f"At {management.shown} another server answers: {names[0]!r} and not {names[1]!r}.")
    ttls = where.message_ttl, where.dlq_ttl
    return VirtualHost(where.vhost, where.shown, connection.version, *ttls, longest, management, queues_of(management))


def _cannot_ask(management: Management, why: str, sources: Sequence[str]) -> Finding:
    if "Not management user" in why:
        fix = f"Let this user ask, or name another one: {OPTION}\nrabbitmqctl set_user_tags {quote(management.user)} management"
    elif "refuses user" in why:
        fix = f"Check its password, or name another user: {OPTION}"
    else:
        fix = f"Say where it is: {OPTION} If it is nowhere:\nrabbitmq-plugins enable rabbitmq_management"
    what = UNSEEN if sources else f"which sources there are (name them with --source), {UNSEEN}"
    return findings.cannot_look(what, f"They are seen through the management API only. {why}", fix)


def _by_amqp(connection: Connection, where: Address, source: str, vhost: VirtualHost | None) -> Iterator[Finding]:
    code = queues.look(connection, source).code
    if code == NOT_FOUND:
        if vhost is None:
            yield queues.missing(where, source)
        else:
            yield from findings.of_sources([source], _others(vhost), where.shown)
        return
    if code == LOCKED and vhost is None:
        yield queues.exclusive(source)
    yield from queues.by_amqp(connection, where, source)


def _others(vhost: VirtualHost) -> list[str]:
    """The queues that may be meant: not those that unpoison has made beside its sources."""
    ours = {queue.name for source in vhost.queues for queue in vhost.family(source).there() if queue.role != "source"}
    return [name for name in vhost.queues if name not in ours and not name.startswith("unpoison.delay.")]


Check = Callable[[], Iterator[Finding]]


def _checks(where: Address, vhost: VirtualHost, chosen: Sequence[str]) -> dict[str, Check]:
    families = [vhost.family(source) for source in chosen]
    return {
        "alarms": partial(server.of_alarms, vhost.management),
        "feature flags": partial(server.of_flags, vhost.management, vhost.version),
        "the exchange of dead letters": partial(queues.of_exchange, vhost),
        "the queues of sources": lambda: (each for family in families for each in _of_family(vhost, family)),
        "the queues of delays": partial(server.of_delays, vhost),
        "the rights of this user": partial(provisioning.of_rights, where, vhost.management, chosen),
    }


def _of_family(vhost: VirtualHost, family: Family) -> Iterator[Finding]:
    for queue in family.there():
        yield from queues.of_any_queue(vhost, queue)
    if family.main is not None:
        yield from sources.of_source(vhost, family.main)
    yield from queues.of_letters(vhost, family)
    if family.suspects is not None:
        yield from queues.of_suspects(vhost, family.suspects)
    yield from sources.of_timeouts(vhost, [each for each in (family.main, family.suspects) if each is not None])


def _every(checks: dict[str, Check]) -> list[Finding]:
    """Each check by itself: one that this user may not make does not keep the others from being made."""
    found: list[Finding] = []
    for what, check in checks.items():
        try:
            found += check()
        except Unanswered as why:
            found.append(findings.cannot_look(what, str(why), f"Ask as a user who may see it: {OPTION}"))
    return found
