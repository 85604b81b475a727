"""Which commands make a queue what it should be, without deleting what is in it?

A policy of a queue's own does, at a higher priority than the one that it has now, and with what of that one does no harm. It
undoes neither an argument, which needs a new queue, nor an operator's policy, which is set anew without the harm.
"""

import json
import math
import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from unpoison.brokers.rabbitmq.management import Place, Policy, Seen
from unpoison.brokers.rabbitmq.topology import BACKSTOP, DLX

HARMFUL = (
    "delivery-limit",
    "message-ttl",
    "expires",
    "overflow",
    "max-length",
    "max-length-bytes",
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "dead-letter-strategy",
    "delayed-retry-type",
    "delayed-retry-min",
    "delayed-retry-max",
    "consumer-timeout",
)
"""What a policy may not set on the queues that are ours alone."""

DEFAULT_WAIT = 30 * 60.0
"""Seconds that RabbitMQ waits for an acknowledgement when nothing is said."""

USUAL = 300.0
"""Seconds that a handler of unpoison may run when nothing is said."""

DAY = 86_400.0

KEPT_ON_SOURCES = ("max-length", "max-length-bytes", "dead-letter-exchange", "dead-letter-routing-key")
"""What a source may have: how long it may grow, and where its letters go, is its owner's business."""


def mended(place: Place, seen: Seen, key: str, **wanted: Any) -> str:
    """The whole text of a fix, for something that this setting, or its absence, does to a queue."""
    if _is_argument(seen, key):
        return remade(place, seen)
    lines, how = [], []
    if seen.operator is not None and key in seen.operator.definition:
        how.append("change the operator policy, for all queues that it matches")
        lines.append(_without_harm(place, seen, seen.operator))
    if not lines or (seen.policy is not None and key in seen.policy.definition):
        how.append("give the queue a policy of its own" if seen.role != "delay" else "give these queues a policy of their own")
        lines.append(policy(place, seen, **wanted))
    return "\n".join([f"While everything runs, {', and '.join(how)}:", *lines])


def _is_argument(seen: Seen, key: str) -> bool:
    """Whether it is the argument that counts, which nothing can change."""
    given = seen.arguments.get(f"x-{key}")
    return given is not None and given in (seen.number(key), seen.text(key))


def policy(place: Place, seen: Seen, **wanted: Any) -> str:
    """The command that gives a queue a policy of its own: what it has now, without what does harm."""
    now = seen.policy
    kept = {} if now is None else _harmless(seen, now)
    named = {key.replace("_", "-"): value for key, value in wanted.items()}
    definition = {**_good(place, seen), **kept, **_waiting(place, seen), **named}
    name, pattern, alike = f"unpoison-{seen.name}", f"^{re.escape(seen.name)}$", [seen]
    if seen.role == "delay":  # these are all alike, and many
        name, pattern = "unpoison-delays", "^unpoison\\.delay\\."
        alike = [each for each in place.queues.values() if each.name.startswith("unpoison.delay.")]
    others = [each.policy.priority for each in alike if each.policy is not None and each.policy.name != name]
    priority = max(others, default=-1) + 1 if now is None or now.name != name else now.priority
    return _command(place, "set_policy", Policy(name, pattern, "queues", priority, definition))


def _waiting(place: Place, seen: Seen) -> dict[str, int]:
    """How long the server is to wait for an acknowledgement, where the policy says it now or the default is too short."""
    if seen.role not in ("source", "lane") or not has_timeout(place, seen):
        return {}
    now = None if seen.policy is None else seen.policy.definition.get("consumer-timeout")
    is_short = (DEFAULT_WAIT if now is None else now / 1000) < (place.longest or USUAL)
    return {"consumer-timeout": enough(place)} if is_short else {} if now is None else {"consumer-timeout": now}


def has_timeout(place: Place, seen: Seen) -> bool:
    """Whether the server takes messages of this queue back, and can be told when for this queue alone."""
    return place.version >= (3, 12) and not (seen.kind == "classic" and place.version >= (4, 3))


def enough(place: Place) -> int:
    """Milliseconds: twice what is needed, so that a message that waits for its turn in a consumer has time too."""
    longest = place.longest or USUAL
    return int(1000 * (DAY if longest == math.inf else max(DEFAULT_WAIT, 2 * longest)))


def remade(place: Place, seen: Seen) -> str:
    """For what only a new queue has: its arguments, its type, whether it lasts."""
    vhost, name = quote(place.vhost), quote(seen.name)
    lines = [f"rabbitmqctl list_queues -p {vhost} name messages consumers", f"rabbitmqctl delete_queue -p {vhost} {name}"]
    if seen.kind == "classic":
        lines = [f"rabbitmqctl delete_queue -p {vhost} {name} --if-empty"]
    how = (
        "That cannot be changed on a queue that is there. Stop what publishes to it and consumes it, move its messages away (a "
        "shovel does that), see that it is empty, delete it, and start unpoison, which makes it anew:"
    )
    return "\n".join([how, *lines])


def removal(place: Place, exchange: str) -> str:
    """The command that deletes an exchange: rabbitmqctl cannot, and rabbitmqadmin is another program in each major version."""
    api = place.management
    return f"curl -u {quote(api.user)} -X DELETE {quote(f'{api.shown}/api/exchanges/{api.vhost}/{exchange}')}"


def _good(place: Place, seen: Seen) -> dict[str, Any]:
    """What the queue should have, whatever it was made with. Never nothing: RabbitMQ takes no policy without a setting."""
    if seen.role == "source":
        if seen.kind != "quorum":
            return {"overflow": "reject-publish"}
        safe = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": BACKSTOP}
        # Where letters go already is not changed, nor the key that leads them there.
        ours = {"dead-letter-exchange": DLX, "dead-letter-routing-key": seen.name}
        return safe if seen.text("dead-letter-exchange") is not None else {**ours, **safe}
    if place.version >= (4, 0) and seen.kind == "quorum":
        return {"delivery-limit": -1}
    # What is there to be cut short, the history and the notes, must go on being cut short.
    return {"overflow": "drop-head" if "x-max-length" in seen.arguments else "reject-publish"}


def _harmless(seen: Seen, now: Policy) -> dict[str, Any]:
    may = KEPT_ON_SOURCES if seen.role == "source" else ()
    return {key: value for key, value in now.definition.items() if key not in HARMFUL or key in may}


def _without_harm(place: Place, seen: Seen, operator: Policy) -> str:
    rest = _harmless(seen, operator)
    if not rest:
        return f"rabbitmqctl clear_operator_policy -p {quote(place.vhost)} {quote(operator.name)}"
    return _command(place, "set_operator_policy", operator._replace(definition=rest))


def _command(place: Place, verb: str, made: Policy) -> str:
    return (
        f"rabbitmqctl {verb} -p {quote(place.vhost)} --priority {made.priority} --apply-to {made.applies} "
        f"{quote(made.name)} {quote(made.pattern)} {quote(_json(made.definition))}"
    )


def _json(definition: Mapping[str, Any]) -> str:
    return json.dumps(dict(definition), ensure_ascii=False)
