"""List what an administrator must create in a virtual host for an app with create=False, and which rights the app's user needs.

The commands are requests to the management API: rabbitmqctl creates no queues, and rabbitmqadmin differs between major versions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from shlex import quote
from typing import Any, NamedTuple
from urllib.parse import quote as escaped

import msgspec

from unpoison.brokers.rabbitmq.connection import Connection
from unpoison.brokers.rabbitmq.delays import LEVELS, bindings_of, exchange_of, queue_of, rung, rungs
from unpoison.brokers.rabbitmq.management import Management, Unanswered
from unpoison.brokers.rabbitmq.names import DLX, check_name, dlq_of, letters_of, made_of, purposes
from unpoison.brokers.rabbitmq.topology import Binding, Queue, Topology, queues
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


KINDS = ("configure", "write", "read")
"""The rights that RabbitMQ knows, in its order."""


class Rights(NamedTuple):
    """By right: the names on which it is needed, and an expression that covers them, as RabbitMQ takes rights."""

    names: Mapping[str, Sequence[str]]
    patterns: Mapping[str, str]

    def lacking(self, given: Mapping[str, str]) -> dict[str, list[str]]:
        """The names that the expressions of a user do not cover."""
        found = {kind: [name for name in self.names[kind] if not _allows(given.get(kind, ""), name)] for kind in KINDS}
        return {kind: names for kind, names in found.items() if names}

    def beside(self, given: Mapping[str, str]) -> dict[str, str]:
        """Expressions that grant what is lacking beside what is given: a user may need that for something else."""
        lacking, made = self.lacking(given), dict(self.patterns)
        for kind in KINDS:
            if given.get(kind) not in (None, "", "^$"):
                made[kind] = f"{given[kind]}|{made[kind]}" if kind in lacking else given[kind]
        return made


def rights_of(where: Address, sources: Sequence[str], *, create: bool) -> Rights:
    """For an app that creates what it needs, or for one with create=False. That one needs the delay queues too, because
    RabbitMQ 4 lets nobody look at a queue without some right on it."""
    own = [name for source in sources for name in purposes(where, source)]
    made = [made_of(source) for source in sources] if create else []
    beside = "|".join(re.escape(name) for name in (*purposes(where, ""), *([made_of("")] if create else ())) if name)
    ours = f"^({'|'.join(map(re.escape, sources))})({beside})?$"
    if named := [name for source in sources for name in letters_of(where, source) if source in where.dlqs]:
        ours += f"|^({'|'.join(map(re.escape, named))})$"
    if create:
        shared, ours = [DLX, exchange_of(0), rung(0, 1)], f"{ours}|^{DLX}$|^unpoison\\."
        names = ([*own, *shared, *made], [*own, *shared, "amq.default"], [*own, *shared])
        patterns = (ours, f"{ours}|^amq\\.default$", ours)
    else:
        delays = [rung(level, digit) for level in range(LEVELS) for digit in rungs(level)]
        names = ([], ["amq.default", DLX, *map(exchange_of, range(LEVELS)), *delays], own)
        patterns = ("^$", f"^(amq\\.default|{DLX}|unpoison\\.delay\\..*)$", ours)
    return Rights(dict(zip(KINDS, names, strict=True)), dict(zip(KINDS, patterns, strict=True)))


def _allows(pattern: str, name: str) -> bool:
    """As RabbitMQ reads it: an expression needs to match a part of the name only, and an empty one matches nothing."""
    try:
        return bool(pattern) and re.search(pattern, name) is not None
    except re.error:  # the server's expressions know a little more than ours
        return True


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
        check_name(where, source)
    user = user or str(where.parameters.credentials.username)
    management = Management(where)
    there = _look(where, management, sources, user)
    notes = [] if there.rights is not None else [_REPLACES.format(user=user)]
    if there.unseen:
        notes.append("Printed for RabbitMQ 4. RabbitMQ 3 takes no x-delivery-limit of -1: leave it out there.")
    setup = SETUP.format(api=quote(f"{management.shown}/api"))
    steps = tuple(_Steps(management.vhost, there).of(where, sources, user))
    return Needs(f"RabbitMQ at {where.shown}", steps, tuple(setup.splitlines()), there.unseen, tuple(notes))


_REPLACES = (
    "The rights replace those that {user!r} has in this virtual host, which could not be seen: if it has others, add them. "
    "See them: rabbitmqctl list_permissions"
)


class _Steps:
    """The steps for one virtual host, of which this is there."""

    def __init__(self, vhost: str, there: There) -> None:
        self._vhost, self._there = vhost, there

    def of(self, where: Address, sources: Sequence[str], user: str) -> Iterator[Step]:
        create = f"create vhosts/{self._vhost} '{{}}'"
        yield Step("vhost", self._vhost, "the virtual host of the URL.", (create,), self._there.vhost)
        for level in range(LEVELS):
            yield from self._delays(level)
        yield self._exchange(DLX, "direct", "the dead letters of all sources go through it.")
        for source in sources:
            meant = purposes(where, source)
            for queue in queues(source, self._there.version, where):
                yield self._queue(queue, f"for source {source!r}: {meant[queue.name]}.")
            why = f"leads what expires in {source!r}, or what RabbitMQ itself gives up, to its dead letters."
            yield self._binding(Binding(DLX, dlq_of(where, source), source), why)
        yield self._rights(where, sources, user)

    def _delays(self, level: int) -> Iterator[Step]:
        lowest, highest = rung(level, rungs(level)[0]), rung(level, rungs(level)[-1])
        why = f"retries and delayed messages of all sources wait in {lowest} to {highest}, each for the time in its name."
        yield from (self._queue(queue_of(level, digit), why) for digit in rungs(level))
        yield self._exchange(exchange_of(level), "headers", why)
        yield from (self._binding(bound, why) for bound in bindings_of(level))

    def _queue(self, queue: Queue, why: str) -> Step:
        command = self._request("create queues", queue.name, durable=True, arguments=queue.arguments)
        return Step("queue", queue.name, why, (command,), queue.name in self._there.queues)

    def _exchange(self, name: str, kind: str, why: str) -> Step:
        command = self._request("create exchanges", name, type=kind, durable=True)
        return Step("exchange", name, why, (command,), name in self._there.exchanges)

    def _binding(self, bound: Binding, why: str) -> Step:
        place = ("e", bound.exchange, bound.to_kind[0], bound.to)
        command = self._request("send POST bindings", *place, routing_key=bound.key, arguments=bound.arguments)
        exists = _known(bound.exchange, bound.to, bound.key, bound.arguments) in self._there.bindings
        return Step("binding", f"{bound.exchange} → {bound.to}", why, (command,), exists)

    def _rights(self, where: Address, sources: Sequence[str], user: str) -> Step:
        given, needed = self._there.rights or {}, rights_of(where, sources, create=False)
        why = "to read its queues, and to write to the exchanges that lead there. The user must exist."
        exists = self._there.rights is not None and not needed.lacking(given)
        return Step("rights", user, why, (self._request("send PUT permissions", user, **needed.beside(given)),), exists)

    def _request(self, what: str, *place: str, **body: Any) -> str:
        """A command of the script: what to do with which kind of thing, where that is, and the thing as JSON."""
        path = "/".join((self._vhost, *(escaped(name, safe="") for name in place)))
        verb, _, kind = what.rpartition(" ")
        return f"{verb} {quote(f'{kind}/{path}')} {quote(msgspec.json.encode(body).decode())}"


def _known(exchange: str, to: str, key: str, arguments: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return exchange, to, key, str(sorted(arguments.items()))


def _look(where: Address, management: Management, sources: Sequence[str], user: str) -> There:
    """By the management API; else by AMQP, which can see neither bindings nor rights."""
    try:
        said = management.get("overview") or {}
        version = tuple(int(part) for part in str(said["rabbitmq_version"]).split(".")[:2])
        found = {kind: management.of_vhost(kind) for kind in ("queues", "exchanges", "bindings")}
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
        return management.of_vhost("permissions", user) or {}
    except Unanswered:  # only an administrator may see them
        return None


def _by_amqp(where: Address, sources: Sequence[str], why: str) -> There:
    try:
        with closing(Connection(where, "look")) as connection:
            topology = Topology(connection, where, set(), set(), create=False)
            wanted = [name for source in sources for name in purposes(where, source)]
            wanted += [rung(level, digit) for level in range(LEVELS) for digit in rungs(level)]
            exchanges = {name for name in (DLX, *map(exchange_of, range(LEVELS))) if topology.exists(name)}
            return There({name for name in wanted if topology.is_there(name)}, exchanges, set(), None, connection.version[:2])
    except UnpoisonError as error:
        return There(set(), set(), set(), None, vhost=False, unseen=f"{error} {why}")
