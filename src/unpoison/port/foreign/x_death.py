"""What does RabbitMQ note about a message that it dead-lettered?

`x-death` is a list of tables, the latest first: one for each queue and reason, with a count and the time of the first. A message
that went round by a queue for delays has several. It came from

- the queue that this DLQ belongs to, if it is among them;
- else the latest one in which a consumer had it or there was no room for it: what expired may have been in a queue for delays;
- else the latest one.

`x-first-death-…` and, from 3.13, `x-last-death-…` tell queue, reason and exchange of the first and the latest. They count where
`x-death` itself cannot be read: they are texts, and clients lose tables more often than texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unpoison.port.foreign.told import Facts, Told, count, known, moment, name, place, text

MOST_DEATHS = 100
_TOLD = ("queue", "reason", "exchange")
HEADERS = ("x-death", *(f"x-{which}-death-{what}" for which in ("first", "last") for what in _TOLD))
"""Those that are read."""

ENDS = {
    "expired": "nobody started it within the time that the queue keeps messages (message_ttl)",
    "rejected": "a consumer rejected it",
    "delivery_limit": "it was delivered more often than the queue allows",
    "maxlen": "the queue was full",
}
"""What RabbitMQ says, and what it means."""
_ATTEMPTED = ("rejected", "delivery_limit")
_CONSUMED = (*_ATTEMPTED, "maxlen")


def read(headers: Mapping[str, Any], source: str) -> Told | None:
    """What these headers tell, decoded, about a letter in the DLQ of `source`; None if RabbitMQ has noted nothing."""
    deaths = _deaths(headers) or _by_name(headers)
    if not deaths:
        return None
    death = _of_source(deaths, source)
    why = name(death.get("reason")) or "unknown"
    meaning = ENDS.get(why, f"RabbitMQ says {why!r}")
    queue = place(death.get("queue"))
    times = [at for each in deaths if (at := moment(each.get("time"))) is not None]
    return Told(
        rule=f"{why}: RabbitMQ dead-lettered it from queue {queue!r}",
        source=queue,
        reason=f"{why}: {meaning}",
        error_type=f"rabbitmq.{why}",
        error=meaning,
        attempts=sum(_attempts(each) for each in deaths if each.get("queue") == death.get("queue")),
        first_failed_at=min(times, default=None),
        last_failed_at=max(times, default=None),
        original=_facts(death, deaths, headers),
    )


def _deaths(headers: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found = headers.get("x-death")
    tables = found[:MOST_DEATHS] if isinstance(found, list) else []
    return [each for each in tables if isinstance(each, dict) and each]


def _by_name(headers: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The latest death, and the first, as the headers beside the list tell them."""
    found = []
    for which in ("x-last-death", "x-first-death"):
        told = {what: headers[f"{which}-{what}"] for what in _TOLD if f"{which}-{what}" in headers}
        found += [told] if told else []
    return found


def _of_source(deaths: Sequence[Mapping[str, Any]], source: str) -> Mapping[str, Any]:
    here = (each for each in deaths if each.get("queue") == source)
    consumed = (each for each in deaths if each.get("reason") in _CONSUMED)
    return next(here, None) or next(consumed, None) or deaths[0]


def _attempts(death: Mapping[str, Any]) -> int:
    return count(death.get("count")) if death.get("reason") in _ATTEMPTED else 0


def route(death: Mapping[str, Any]) -> Facts:
    """Exchange and routing key with which the message came into that queue."""
    keys = death.get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys else None
    return {"exchange": text(death["exchange"]), "routing_key": text(key)} if "exchange" in death and key is not None else {}


def _facts(death: Mapping[str, Any], deaths: Sequence[Mapping[str, Any]], headers: Mapping[str, Any]) -> Facts:
    told = {each: text(death[each]) for each in ("queue", "reason", "count") if each in death}
    more = {f"first_{each}": text(headers.get(f"x-first-death-{each}")) for each in _TOLD}
    through = ", ".join(f"{text(each.get('queue'), 100)} ({text(each.get('reason'), 50)})" for each in deaths[:20])
    several = {**more, "deaths": through} if len(deaths) > 1 else {}
    return known({**route(death), **told, **several}) | _empty_exchange(death)


def _empty_exchange(death: Mapping[str, Any]) -> Facts:
    """The default exchange has no name, which is told too."""
    return {"exchange": ""} if route(death).get("exchange") == "" else {}
