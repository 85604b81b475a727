"""What an administrator must create in JetStream, and what the app's user must be allowed to do there."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from shlex import quote
from typing import NamedTuple

from unpoison.brokers.nats import topology
from unpoison.brokers.nats.connection import Connection
from unpoison.brokers.nats.names import Names, names_of
from unpoison.brokers.nats.topology import config_of, work_consumer
from unpoison.brokers.nats.url import Address, address
from unpoison.errors import UnpoisonError
from unpoison.port.provisioning import Needs, Step, no_user

SETUP = """\
# The nats program must be on the PATH. How an administrator of the account logs in: NATS_USER=… NATS_PASSWORD=… sh FILE, or
# NATS_CREDS=FILE, or NATS_CONTEXT=NAME
cli() {{ nats --server {servers}{domain} "$@" > /dev/null; }}
config=${{config:-$(mktemp)}}
trap 'rm -f "$config"' EXIT
stream() {{  # NAME JSON; what exists stays as it is
    cli stream info "$1" 2> /dev/null || {{ printf '%s' "$2" > "$config"; cli stream add "$1" --config "$config"; }}
}}
consumer() {{  # STREAM NAME JSON; what exists stays as it is
    cli consumer info "$1" "$2" 2> /dev/null || {{ printf '%s' "$3" > "$config"; cli consumer add "$1" "$2" --config "$config"; }}
}}"""

NEWEST = (2, 12)
"""Taken for the server's version where that is not known."""

PERMISSIONS_NOTE = (
    "Permissions stand in the server's configuration (with accounts by JWT: nsc edit user). Nobody can see them, so they "
    "are always printed."
)


class There(NamedTuple):
    """What exists for one source. `stream` is the name of the one that takes its subject."""

    names: Names
    stream: str = ""
    streams: frozenset[str] = frozenset()
    consumers: frozenset[tuple[str, str]] = frozenset()
    work_consumer: str = ""


def needs(url: str, sources: Sequence[str], user: str | None = None) -> Needs:
    where = address(url)
    named = [names_of(where, source) for source in sources]
    unseen, version = "", NEWEST
    try:
        with closing(Connection(where)) as connection:
            version, known = connection.version, [_look(connection, names) for names in named]
    except UnpoisonError as error:
        unseen, known = str(error), [There(names) for names in named]
    steps = [step for there in known for step in _of_source(there, where, version)]
    user = user or where.options.get("user")
    notes = [PERMISSIONS_NOTE] if user else [no_user("a user of the account")]
    if user:
        steps.append(_rights(known, where, user))
    domain = where.api.removeprefix("$JS.").removesuffix("API").rstrip(".")
    setup = SETUP.format(servers=quote(",".join(where.servers)), domain=f" --js-domain {quote(domain)}" if domain else "")
    return Needs(f"NATS at {where.shown}", steps, tuple(setup.splitlines()), unseen, tuple(notes))


def permissions(known: Sequence[There], where: Address) -> dict[str, dict[str, list[str]]]:
    """Of a user whose app runs with create=False; its operators and the doctor included."""
    api, inbox = where.api, str(where.options.get("inbox_prefix", "_INBOX"))
    publish = [f"{api}.INFO", f"{api}.STREAM.NAMES", f"{api}.STREAM.LIST", "$JS.ACK.>", "unpoison.operator.*"]
    subscribe = [f"{inbox}.>", "unpoison.operator.*"]
    for there in known:
        names = there.names
        publish += [names.source, names.again, names.suspects, f"{names.later}.*", names.dead, names.holding]
        publish += [f"{each}.*" for each in (names.claim, names.discarded, names.replays, names.starts)]
        for stream in (there.stream or names.base, names.retries, names.dlq):
            publish += [f"{api}.STREAM.INFO.{stream}", f"{api}.CONSUMER.INFO.{stream}.*", f"{api}.CONSUMER.MSG.NEXT.{stream}.*"]
        publish += [f"{api}.STREAM.{verb}.{names.dlq}" for verb in ("MSG.GET", "MSG.DELETE", "PURGE")]
        publish += [f"{api}.CONSUMER.{verb}.{names.dlq}" for verb in ("NAMES", "LIST", "CREATE")]
        publish += [f"{api}.CONSUMER.DELETE.{names.dlq}.*"]
        subscribe.append(names.holding)
    return {"publish": {"allow": list(dict.fromkeys(publish))}, "subscribe": {"allow": subscribe}}


def _of_source(there: There, where: Address, version: tuple[int, int]) -> Iterator[Step]:
    names, why = there.names, f"for source {there.names.source!r}: "
    wanted = [(topology.retries(names, where, version), "its retries"), (topology.letters(names, where), "its dead letters")]
    work = topology.work(names, where)
    if there.stream:
        yield Step("stream", there.stream, f"{why}its messages.", (), exists=True)
    else:
        wanted.insert(0, (work, "its messages"))
    for config, purpose in wanted:
        command = f"stream {config['name']} {quote(json.dumps(config))}"
        yield Step("stream", config["name"], f"{why}{purpose}.", (command,), config["name"] in there.streams)
    name = there.work_consumer or work_consumer(names, work, None)
    consumers = [(there.stream or names.base, topology.consumer(name, names.source, where.ack_wait))]
    has_schedules = version >= topology.SCHEDULES_SINCE
    consumers += topology.own_consumers(names, where.ack_wait, has_schedules=has_schedules)
    for stream, config in consumers:
        durable = config["durable_name"]
        command = f"consumer {stream} {durable} {quote(json.dumps(config))}"
        exists = (stream, durable) in there.consumers
        yield Step("consumer", f"{durable} of {stream}", f"{why}takes {config['filter_subject']}.", (command,), exists)


def _rights(known: Sequence[There], where: Address, user: str) -> Step:
    text = json.dumps({"user": user, "permissions": permissions(known, where)}, indent=2)
    lines = ("cat <<'CONF'", *text.splitlines(), "CONF")
    why = "add it, with a password, to the users of the account in the server's configuration; then: nats-server --signal reload"
    return Step("rights", user, why, lines)


def _look(connection: Connection, names: Names) -> There:
    stream = topology.stream_of(connection, names.source) or ""
    config = config_of(connection, f"STREAM.INFO.{stream}") if stream else None
    name = ""
    places = [(names.retries, each) for each in ("again", "suspects", "later")] + [(names.dlq, names.group)]
    if config is not None:
        name = work_consumer(names, config, config_of(connection, f"CONSUMER.INFO.{stream}.{names.group}"))
        places.append((stream, name))
    consumers = frozenset(place for place in places if config_of(connection, f"CONSUMER.INFO.{'.'.join(place)}") is not None)
    streams = frozenset(each for each in (names.retries, names.dlq) if config_of(connection, f"STREAM.INFO.{each}") is not None)
    return There(names, "" if config is None else stream, streams, consumers, name)
