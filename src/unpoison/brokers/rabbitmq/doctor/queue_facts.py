"""What do the checks of queues, and their texts, ask about one queue? And which commands make it what it should be?

A policy of a queue's own does that without deleting what is in it, at a higher priority than the one that it has now, and with
what of that one does no harm. It undoes neither an argument, which needs a new queue, nor an operator's policy, which is set
again without the harm.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from shlex import quote
from typing import Any

from unpoison.brokers.rabbitmq.management import FoundQueue, Policy, VirtualHost
from unpoison.brokers.rabbitmq.names import DLX
from unpoison.brokers.rabbitmq.topology import BACKSTOP
from unpoison.model.wording import counted

TIMEOUT = "consumer-timeout"
KEPT_ON_SOURCES = ("max-length", "max-length-bytes", "dead-letter-exchange", "dead-letter-routing-key")
"""What a source may have: how long it may grow, and where its letters go, is its owner's business."""

_RETRIES = ("delayed-retry-type", "delayed-retry-min", "delayed-retry-max")
HARMFUL = (*KEPT_ON_SOURCES, *_RETRIES, "delivery-limit", "message-ttl", "expires", "overflow", "dead-letter-strategy", TIMEOUT)
"""What a policy may not set on the queues that are ours alone."""

DEFAULT_WAIT = 30 * 60.0
"""Seconds that RabbitMQ waits for an acknowledgement when nothing is said."""

USUAL = 300.0
"""Seconds that a handler of unpoison may run when nothing is said."""

DAY = 86_400.0

START = "Start a consumer, which creates what is missing:\nunpoison run module:app"


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
    delete = f"rabbitmqctl delete_queue -p {where} {name}"
    is_classic = queue.kind == "classic"
    return (
        "That cannot be changed on an existing queue. Stop what publishes to it and consumes it, move its messages away (a "
        "shovel does that), see that it is empty, delete it, and start unpoison, which creates it again:\n"
        + (f"{delete} --if-empty" if is_classic else f"rabbitmqctl list_queues -p {where} name messages consumers\n{delete}")
    )


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
        f"{quote(made.name)} {quote(made.pattern)} {quote(json.dumps(dict(made.definition), ensure_ascii=False))}"
    )


class ByKey:
    """Lets a template ask by a key: `{of.by[delivery-limit]}`."""

    def __init__(self, find: Callable[[str], str]) -> None:
        self._find = find

    def __getitem__(self, key: str) -> str:
        return self._find(key)


class QueueFacts:
    """One queue, as the checks and their texts ask about it."""

    def __init__(self, vhost: VirtualHost, queue: FoundQueue) -> None:
        self.vhost, self.queue = vhost, queue
        self.name, self.kind, self.role = queue.name, queue.kind, queue.role
        self.by, self.fix = ByKey(queue.by), ByKey(partial(mended, vhost, queue))
        self.text = ByKey(lambda key: queue.text(key) or "not set")
        self.remade = remade(vhost, queue)
        self.delete_command = self.remade.splitlines()[-1]
        self.limit = queue.limit(vhost.version)
        self.next_delivery = (self.limit or 0) + 1
        self.times = counted(self.next_delivery, "time")
        self.ttl, self.expires = queue.number("message-ttl"), queue.number("expires")
        self.ttl_seconds, self.expires_seconds = (f"{(each or 0) / 1000:,.10g} s" for each in (self.ttl, self.expires))
        self.exchange, self.key = queue.text("dead-letter-exchange"), queue.text("dead-letter-routing-key")
        self.letter_key = self.name if self.key is None else self.key
        self.expired = "is deleted" if self.exchange is None else f"goes to the exchange {self.exchange!r}"
        self.refuses = str(queue.text("overflow")).startswith("reject-publish")
        self.dropped = "the oldest dead letters" if self.role == "dlq" else "its oldest messages, which were confirmed,"
        self.url_says = "The URL has no dlq_ttl" if vhost.dlq_ttl is None else f"The URL has dlq_ttl={vhost.dlq_ttl:g}"

    # The length.

    @property
    def length_key(self) -> str:
        """The setting that limits the length; empty if none does, or if the queue is there to be cut short."""
        keys = (key for key in ("max-length", "max-length-bytes") if self.queue.number(key) is not None)
        return next(keys, "") if self.kind != "stream" and self.role not in ("notes", "history") else ""

    @property
    def length_limit(self) -> str:
        unit = "messages" if self.length_key == "max-length" else "bytes"
        return f"{self.queue.number(self.length_key):,} {unit} ({self.by[self.length_key]})"

    @property
    def length_fix(self) -> str:
        return self.fix["overflow" if self.role == "source" and not self.refuses else self.length_key]

    # The age of messages.

    def messages_expire(self) -> bool:
        if self.kind == "stream" or self.role not in ("source", "suspects"):
            return False
        meant = self.vhost.message_ttl if self.role == "source" and self.exchange is not None else None
        return self._is_shorter(meant)

    def letters_expire(self) -> bool:
        return self.exchange is None and self._is_shorter(self.vhost.dlq_ttl)

    def _is_shorter(self, meant: float | None) -> bool:
        """Whether messages expire, and sooner than the URL says; None: it says nothing."""
        return self.ttl is not None and (meant is None or self.ttl < meant * 1000)

    @property
    def ttl_fix(self) -> str:
        option = {"source": "message_ttl", "dlq": "dlq_ttl"}.get(self.role, "")
        fix = self.fix["message-ttl"]
        if not option or (self.role == "source" and self.exchange is None):
            return fix
        return f"If it is meant, add {option}={(self.ttl or 0) / 1000:.10g} to the URL. If not: {fix[0].lower()}{fix[1:]}"

    # Dead letters.

    @cached_property
    def ends(self) -> set[str] | None:
        """The queues where a letter of this source arrives. None: the exchange decides, which cannot be seen here."""
        return None if self.exchange is None else _ends(self.vhost, self.exchange, self.letter_key)

    @property
    def why_unrouted(self) -> str:
        is_missing = self.exchange and self.vhost.exchange(self.exchange) is None
        return "which does not exist" if is_missing else "from which nothing leads on"

    @property
    def loop_fix(self) -> str:
        ours = {"dead_letter_exchange": DLX, "dead_letter_routing_key": self.name}
        return mended(self.vhost, self.queue, "dead-letter-exchange", **ours)

    def is_at_most_once(self) -> bool:
        wanted = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}
        is_safe = all(self.queue.text(key) == value for key, value in wanted.items())
        return self.exchange is not None and self.kind == "quorum" and not is_safe

    @property
    def at_least_once_fix(self) -> str:
        is_dropping = self.queue.text("overflow") not in (None, "reject-publish")
        return self.fix["overflow" if is_dropping else "dead-letter-strategy"]


def _ends(vhost: VirtualHost, exchange: str, key: str) -> set[str] | None:
    if exchange == "":
        return {key} & set(vhost.queues)
    found = vhost.exchange(exchange)
    if found is None:
        return set()
    leaving = vhost.bindings(exchange)
    if found["type"] == "direct":
        leaving = [each for each in leaving if each["routing_key"] == key]
    elif found["type"] != "fanout" and leaving:
        return None
    if any(each["destination_type"] != "queue" for each in leaving) or found["arguments"].get("alternate-exchange"):
        return None
    return {each["destination"] for each in leaving}


class TimeoutFacts:
    """How long RabbitMQ waits for an acknowledgement from one queue: what it is told for the queue, or shows of a consumer. What
    its own file says cannot be seen: then its default is assumed."""

    def __init__(self, vhost: VirtualHost, queue: FoundQueue, shown: Mapping[str, int]) -> None:
        self._vhost, self._queue = vhost, queue
        self.name, self.needed, self._enough = queue.name, vhost.longest, enough(vhost)
        told = queue.number(TIMEOUT)
        self.waits = min((value / 1000 for value in (shown.get(queue.name), told) if value is not None), default=None)
        is_told = self.waits is not None and told == self.waits * 1000
        self.by = queue.by(TIMEOUT) if is_told else "as the server says of its consumers"

    @property
    def runs(self) -> str:
        if self.needed is None:
            return f"a handler may run for {USUAL:g} s unless its consumer says otherwise"
        return "a handler here has no time limit" if self.needed == math.inf else f"a handler here may run for {self.needed:g} s"

    @property
    def fix(self) -> str:
        return mended(self._vhost, self._queue, TIMEOUT, consumer_timeout=self._enough)

    @property
    def unseen_fix(self) -> str:
        if has_timeout(self._vhost, self._queue):
            own = policy(self._vhost, self._queue, consumer_timeout=self._enough)
            return f"Set it for the queue, where it can be seen:\n{own}"
        return (
            "See what it is, in milliseconds; set it until the next restart, and in rabbitmq.conf "
            f"(consumer_timeout = {self._enough}):\nrabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'\n"
            f"rabbitmqctl eval 'application:set_env(rabbit, consumer_timeout, {self._enough}).'"
        )
