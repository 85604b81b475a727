"""List what an administrator must create in a virtual host for an app with create=False, and which rights the app's user needs.

The commands are requests to the management API: rabbitmqctl creates no queues, and rabbitmqadmin differs between major versions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from shlex import quote
from typing import Any, NamedTuple
from urllib.parse import quote as escaped

import msgspec

from unpoison.brokers.rabbitmq import rights
from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.delays import LEVELS, Binding, bindings_of, exchange_of, queue_of, rung, rungs
from unpoison.brokers.rabbitmq.management import Management, Unanswered
from unpoison.brokers.rabbitmq.names import DLX, check_name, dlq_of, native_names
from unpoison.brokers.rabbitmq.topology import Queue, Topology, queues
from unpoison.brokers.rabbitmq.url import Address, address
from unpoison.errors import UnpoisonError
from unpoison.port.provisioning import Needs, Step

NEWEST = (4, 0)
"""Taken for the server's version where that is not known."""

SETUP = """\
# The login of an administrator of RabbitMQ, who may use the management API:
: "${{RABBITMQ_LOGIN:?is not set: write RABBITMQ_LOGIN=user:password before the command}}"
api={api}

send() {{  # METHOD PATH JSON
    answer=$(curl -sS -u "$RABBITMQ_LOGIN" -H 'content-type: application/json' -X "$1" -d "$3" -w ' %{{http_code}}' "$api/$2")
    case "$answer" in
        *" 2"??) ;;
        *) echo "$1 $2 was refused: $answer" >&2; exit 1 ;;
    esac
}}
create() {{  # PATH JSON; what exists stays as it is
    curl -sS -f -o /dev/null -u "$RABBITMQ_LOGIN" "$api/$1" 2>/dev/null || send PUT "$1" "$2"
}}"""


class There(NamedTuple):
    """What exists, as far as this user may see. `rights` are those of the user; None where that cannot be seen."""

    queues: set[str]
    exchanges: set[str]
    bindings: set[tuple[str, str, str, str]]
    rights: Mapping[str, str] | None
    version: tuple[int, int] = NEWEST
    vhost: bool = True
    unseen: str = ""


def needs(url: str, sources: Sequence[str], user: str | None = None) -> Needs:
    where = address(url)
    for source in sources:
        check_name(source)
    user = user or str(where.parameters.credentials.username)
    management = Management(where)
    there = _look(where, management, sources, user)
    steps = [
        *_vhost(management, there),
        *_delays(management, there),
        _exchange(management, there, DLX, "direct", "the dead letters of all sources go through it."),
        *(step for source in sources for step in _of_source(where, management, there, source)),
        _rights(management, there, sources, user),
    ]
    notes = [] if there.rights is not None else [_REPLACES.format(user=user)]
    if there.unseen:
        notes.append("Printed for RabbitMQ 4. RabbitMQ 3 takes no x-delivery-limit of -1: leave it out there.")
    setup = SETUP.format(api=quote(f"{management.shown}/api"))
    return Needs(f"RabbitMQ at {where.shown}", steps, tuple(setup.splitlines()), there.unseen, tuple(notes))


_REPLACES = (
    "The rights replace those that {user!r} has in this virtual host, which could not be seen: if it has others, add them. "
    "See them: rabbitmqctl list_permissions"
)


def _vhost(management: Management, there: There) -> Iterator[Step]:
    command = f"create vhosts/{management.vhost} '{{}}'"
    yield Step("vhost", management.vhost, "the virtual host of the URL.", (command,), there.vhost)


def _of_source(where: Address, management: Management, there: There, source: str) -> Iterator[Step]:
    purposes = native_names("", source, consumed=True)
    for queue in queues(source, there.version, where.message_ttl, where.dlq_ttl):
        yield _queue(management, there, queue, f"for source {source!r}: {purposes[queue.name]}.")
    why = f"leads what expires in {source!r}, or what RabbitMQ itself gives up, to its dead letters."
    yield _binding(management, there, Binding(DLX, dlq_of(source), "queue", source, {}), why)


def _delays(management: Management, there: There) -> Iterator[Step]:
    for level in range(LEVELS):
        lowest, highest = rung(level, rungs(level)[0]), rung(level, rungs(level)[-1])
        why = f"retries and delayed messages of all sources wait in {lowest} to {highest}, each for the time in its name."
        yield from (_queue(management, there, queue_of(level, digit), why) for digit in rungs(level))
        yield _exchange(management, there, exchange_of(level), "headers", why)
        for bound in bindings_of(level):
            yield _binding(management, there, bound, why)


def _queue(management: Management, there: There, queue: Queue, why: str) -> Step:
    path = f"queues/{management.vhost}/{escaped(queue.name, safe='')}"
    command = f"create {quote(path)} {_json({'durable': True, 'arguments': queue.arguments})}"
    return Step("queue", queue.name, why, (command,), queue.name in there.queues)


def _exchange(management: Management, there: There, name: str, kind: str, why: str) -> Step:
    command = f"create {quote(f'exchanges/{management.vhost}/{name}')} {_json({'type': kind, 'durable': True})}"
    return Step("exchange", name, why, (command,), name in there.exchanges)


def _binding(management: Management, there: There, bound: Binding, why: str) -> Step:
    path = f"bindings/{management.vhost}/e/{bound.exchange}/{bound.to_kind[0]}/{escaped(bound.to, safe='')}"
    command = f"send POST {quote(path)} {_json({'routing_key': bound.key, 'arguments': bound.arguments})}"
    exists = _known(bound.exchange, bound.to, bound.key, bound.arguments) in there.bindings
    return Step("binding", f"{bound.exchange} → {bound.to}", why, (command,), exists)


def _rights(management: Management, there: There, sources: Sequence[str], user: str) -> Step:
    given, wanted = there.rights or {}, rights.patterns_to_use(sources)
    lacking = rights.lacking(given, rights.to_use(sources))
    for kind in rights.KINDS:
        if given.get(kind) not in (None, "", "^$"):  # else what the user may do for others would be taken away
            wanted[kind] = f"{given[kind]}|{wanted[kind]}" if kind in lacking else given[kind]
    path = f"permissions/{management.vhost}/{escaped(user, safe='')}"
    why = "to read its queues, and to write to the exchanges that lead there. The user must exist."
    return Step("rights", user, why, (f"send PUT {quote(path)} {_json(wanted)}",), there.rights is not None and not lacking)


def _json(value: Mapping[str, Any]) -> str:
    return quote(msgspec.json.encode(value).decode())


def _known(exchange: str, to: str, key: str, arguments: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return exchange, to, key, str(sorted(arguments.items()))


def _look(where: Address, management: Management, sources: Sequence[str], user: str) -> There:
    """By the management API; else by AMQP, which can see neither bindings nor rights."""
    try:
        said = management.get("overview") or {}
        version = tuple(int(part) for part in str(said["rabbitmq_version"]).split(".")[:2])
        found = {kind: management.get(f"{kind}/{management.vhost}") for kind in ("queues", "exchanges", "bindings")}
        bindings = {
            _known(each["source"], each["destination"], each["routing_key"], each["arguments"])
            for each in found["bindings"] or ()
        }
        names = {kind: {each["name"] for each in found[kind] or ()} for kind in ("queues", "exchanges")}
        is_there = found["queues"] is not None
        return There(names["queues"], names["exchanges"], bindings, _given(management, user), version, is_there)  # type: ignore[arg-type]
    except (Unanswered, KeyError, ValueError) as error:
        return _by_amqp(where, sources, str(error))


def _given(management: Management, user: str) -> Mapping[str, str] | None:
    try:
        return management.get(f"permissions/{management.vhost}/{escaped(user, safe='')}") or {}
    except Unanswered:  # only an administrator may see them
        return None


def _by_amqp(where: Address, sources: Sequence[str], why: str) -> There:
    try:
        with closing(Connection(where, "look")) as connection:
            topology = Topology(connection, create=False, message_ttl=None, dlq_ttl=None, known=set(), created=set())
            wanted = [name for source in sources for name in native_names("", source, consumed=True)]
            wanted += [rung(level, digit) for level in range(LEVELS) for digit in rungs(level)]
            exchanges = {name for name in (DLX, *map(exchange_of, range(LEVELS))) if topology.exists(name)}
            return There({name for name in wanted if topology.is_there(name)}, exchanges, set(), None, connection.version[:2])
    except UnpoisonError as error:
        return There(set(), set(), set(), None, vhost=False, unseen=f"{error} {why}")
