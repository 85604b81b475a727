"""Which commands make a queue what it should be, without deleting what is in it?

A policy of a queue's own does, at a higher priority than the one that it has now, and with what of that one does no harm. It
undoes neither an argument, which needs a new queue, nor an operator's policy, which is set again without the harm.
"""

import json
import math
import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

from unpoison.brokers.rabbitmq.management import FoundQueue, Policy, VirtualHost
from unpoison.brokers.rabbitmq.names import DLX
from unpoison.brokers.rabbitmq.topology import BACKSTOP

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

START = "Start a consumer, which creates what is missing:\nunpoison run module:app"

KEPT_ON_SOURCES = ("max-length", "max-length-bytes", "dead-letter-exchange", "dead-letter-routing-key")
"""What a source may have: how long it may grow, and where its letters go, is its owner's business."""


def mended(vhost: VirtualHost, queue: FoundQueue, key: str, **wanted: Any) -> str:
    """The whole text of a fix, for something that this setting, or its absence, does to a queue."""
    if _is_argument(queue, key):
        return remade(vhost, queue)
    lines, how = [], []
    if queue.operator is not None and key in queue.operator.definition:
        how.append("change the operator policy, for all queues that it matches")
        lines.append(_without_harm(vhost, queue, queue.operator))
    if not lines or (queue.policy is not None and key in queue.policy.definition):
        how.append("give the queue a policy of its own" if queue.role != "delay" else "give these queues a policy of their own")
        lines.append(policy(vhost, queue, **wanted))
    return "\n".join([f"While everything runs, {', and '.join(how)}:", *lines])


def _is_argument(queue: FoundQueue, key: str) -> bool:
    """Whether it is the argument that counts, which nothing can change."""
    given = queue.arguments.get(f"x-{key}")
    return given is not None and given in (queue.number(key), queue.text(key))


def policy(vhost: VirtualHost, queue: FoundQueue, **wanted: Any) -> str:
    """The command that gives a queue a policy of its own: what it has now, without what does harm."""
    now = queue.policy
    kept = {} if now is None else _harmless(queue, now)
    named = {key.replace("_", "-"): value for key, value in wanted.items()}
    definition = {**_good(vhost, queue), **kept, **_waiting(vhost, queue), **named}
    name, pattern, alike = f"unpoison-{queue.name}", f"^{re.escape(queue.name)}$", [queue]
    if queue.role == "delay":  # these are all alike, and many
        name, pattern = "unpoison-delays", "^unpoison\\.delay\\."
        alike = [each for each in vhost.queues.values() if each.name.startswith("unpoison.delay.")]
    others = [each.policy.priority for each in alike if each.policy is not None and each.policy.name != name]
    priority = max(others, default=-1) + 1 if now is None or now.name != name else now.priority
    return _command(vhost, "set_policy", Policy(name, pattern, "queues", priority, definition))


def _waiting(vhost: VirtualHost, queue: FoundQueue) -> dict[str, int]:
    """How long the server is to wait for an acknowledgement, where the policy says it now or the default is too short."""
    if queue.role not in ("source", "suspects") or not has_timeout(vhost, queue):
        return {}
    now = None if queue.policy is None else queue.policy.definition.get("consumer-timeout")
    is_short = (DEFAULT_WAIT if now is None else now / 1000) < (vhost.longest or USUAL)
    return {"consumer-timeout": enough(vhost)} if is_short else {} if now is None else {"consumer-timeout": now}


def has_timeout(vhost: VirtualHost, queue: FoundQueue) -> bool:
    """Whether the server takes messages of this queue back, and can be told for this queue alone when."""
    return vhost.version >= (3, 12) and not (queue.kind == "classic" and vhost.version >= (4, 3))


def enough(vhost: VirtualHost) -> int:
    """Milliseconds: twice what is needed, so that a message that waits for its turn in a consumer has time too."""
    longest = vhost.longest or USUAL
    return int(1000 * (DAY if longest == math.inf else max(DEFAULT_WAIT, 2 * longest)))


def remade(vhost: VirtualHost, queue: FoundQueue) -> str:
    """For what only a new queue has: its arguments, its type, whether it lasts."""
    where, name = quote(vhost.name), quote(queue.name)
    lines = [f"rabbitmqctl list_queues -p {where} name messages consumers", f"rabbitmqctl delete_queue -p {where} {name}"]
    if queue.kind == "classic":
        lines = [f"rabbitmqctl delete_queue -p {where} {name} --if-empty"]
    how = (
        "That cannot be changed on an existing queue. Stop what publishes to it and consumes it, move its messages away (a "
        "shovel does that), see that it is empty, delete it, and start unpoison, which creates it again:"
    )
    return "\n".join([how, *lines])


def removal(vhost: VirtualHost, exchange: str) -> str:
    """The command that deletes an exchange: rabbitmqctl cannot, and rabbitmqadmin is another program in each major version."""
    api = vhost.management
    return f"curl -u {quote(api.user)} -X DELETE {quote(f'{api.shown}/api/exchanges/{api.vhost}/{exchange}')}"


def _good(vhost: VirtualHost, queue: FoundQueue) -> dict[str, Any]:
    """What the queue should have, whatever it was made with. Never nothing: RabbitMQ takes no policy without a setting."""
    if queue.role == "source":
        if queue.kind != "quorum":
            return {"overflow": "reject-publish"}
        safe = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": BACKSTOP}
        # Where letters go already is not changed, nor the key that leads them there.
        ours = {"dead-letter-exchange": DLX, "dead-letter-routing-key": queue.name}
        return safe if queue.text("dead-letter-exchange") is not None else {**ours, **safe}
    if vhost.version >= (4, 0) and queue.kind == "quorum":
        return {"delivery-limit": -1}
    # The history and the notes must go on being cut short.
    return {"overflow": "drop-head" if "x-max-length" in queue.arguments else "reject-publish"}


def _harmless(queue: FoundQueue, now: Policy) -> dict[str, Any]:
    may = KEPT_ON_SOURCES if queue.role == "source" else ()
    return {key: value for key, value in now.definition.items() if key not in HARMFUL or key in may}


def _without_harm(vhost: VirtualHost, queue: FoundQueue, operator: Policy) -> str:
    rest = _harmless(queue, operator)
    if not rest:
        return f"rabbitmqctl clear_operator_policy -p {quote(vhost.name)} {quote(operator.name)}"
    return _command(vhost, "set_operator_policy", operator._replace(definition=rest))


def _command(vhost: VirtualHost, verb: str, made: Policy) -> str:
    return (
        f"rabbitmqctl {verb} -p {quote(vhost.name)} --priority {made.priority} --apply-to {made.applies} "
        f"{quote(made.name)} {quote(made.pattern)} {quote(_json(made.definition))}"
    )


def _json(definition: Mapping[str, Any]) -> str:
    return json.dumps(dict(definition), ensure_ascii=False)
