"""What the checks of queues, and their texts, ask about one queue."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial

from unpoison.brokers.rabbitmq.doctor.fixes import USUAL, enough, has_timeout, mended, policy, remade
from unpoison.brokers.rabbitmq.management import Family, FoundQueue, VirtualHost
from unpoison.brokers.rabbitmq.names import DLX, dlq_of
from unpoison.model.wording import counted

TIMEOUT = "consumer-timeout"


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
        self.limit = queue.limit(vhost.version)
        self.ttl, self.expires = queue.number("message-ttl"), queue.number("expires")
        self.exchange = queue.text("dead-letter-exchange")
        self.key = queue.text("dead-letter-routing-key")

    @property
    def remade(self) -> str:
        return remade(self.vhost, self.queue)

    @property
    def delete_command(self) -> str:
        return self.remade.splitlines()[-1]

    @property
    def times(self) -> str:
        return counted((self.limit or 0) + 1, "time")

    @property
    def next_delivery(self) -> int:
        return (self.limit or 0) + 1

    @property
    def ttl_seconds(self) -> str:
        return f"{(self.ttl or 0) / 1000:,.10g} s"

    @property
    def expires_seconds(self) -> str:
        return f"{(self.expires or 0) / 1000:,.10g} s"

    # The length.

    @property
    def length_key(self) -> str:
        """The setting that limits the length; empty if none does, or if the queue is there to be cut short."""
        keys = (key for key in ("max-length", "max-length-bytes") if self.queue.number(key) is not None)
        return next(keys, "") if self.kind != "stream" and self.role not in ("notes", "history") else ""

    @property
    def refuses(self) -> bool:
        return str(self.queue.text("overflow")).startswith("reject-publish")

    @property
    def length_limit(self) -> str:
        unit = "messages" if self.length_key == "max-length" else "bytes"
        return f"{self.queue.number(self.length_key):,} {unit} ({self.by[self.length_key]})"

    @property
    def dropped(self) -> str:
        return "the oldest dead letters" if self.role == "dlq" else "its oldest messages, which were confirmed,"

    @property
    def length_fix(self) -> str:
        return self.fix["overflow" if self.role == "source" and not self.refuses else self.length_key]

    # The age of messages.

    def messages_expire(self) -> bool:
        if self.ttl is None or self.kind == "stream" or self.role not in ("source", "suspects"):
            return False
        meant = self.vhost.message_ttl if self.role == "source" else None
        return meant is None or self.exchange is None or self.ttl < meant * 1000

    @property
    def expired(self) -> str:
        return "is deleted" if self.exchange is None else f"goes to the exchange {self.exchange!r}"

    @property
    def ttl_fix(self) -> str:
        option = {"source": "message_ttl", "dlq": "dlq_ttl"}.get(self.role, "")
        fix = self.fix["message-ttl"]
        if not option or (self.role == "source" and self.exchange is None):
            return fix
        return f"If it is meant, add {option}={(self.ttl or 0) / 1000:.10g} to the URL. If not: {fix[0].lower()}{fix[1:]}"

    # Dead letters.

    def letters_expire(self) -> bool:
        meant = self.vhost.dlq_ttl
        return self.ttl is not None and self.exchange is None and (meant is None or self.ttl < meant * 1000)

    @property
    def url_says(self) -> str:
        meant = self.vhost.dlq_ttl
        return "The URL has no dlq_ttl" if meant is None else f"The URL has dlq_ttl={meant:g}"

    @cached_property
    def ends(self) -> set[str] | None:
        """The queues where a letter of this source arrives. None: the exchange decides, which cannot be seen here."""
        if self.exchange is None:
            return None
        return _ends(self.vhost, self.exchange, self.letter_key)

    @property
    def letter_key(self) -> str:
        return self.name if self.key is None else self.key

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


class BindingFacts:
    """The DLQ of one source, and whether letters get there."""

    def __init__(self, vhost: VirtualHost, family: Family) -> None:
        self._vhost, self._family = vhost, family
        self.source, self.dlq = family.source, dlq_of(family.source)

    def is_unbound(self) -> bool:
        if self._family.main is None or self._family.dlq is None:
            return False
        wanted = (self.dlq, self.source)
        return not any((each["destination"], each["routing_key"]) == wanted for each in self._vhost.bindings(DLX))


class TimeoutFacts:
    """How long RabbitMQ waits for an acknowledgement from one queue: what it is told for the queue, or shows of a consumer. What
    its own file says cannot be seen: then its default is assumed."""

    def __init__(self, vhost: VirtualHost, queue: FoundQueue, shown: Mapping[str, int]) -> None:
        self._vhost, self._queue, self.name = vhost, queue, queue.name
        known = [value / 1000 for value in (shown.get(queue.name), queue.number(TIMEOUT)) if value is not None]
        self.waits = min(known, default=None)
        self.needed = vhost.longest

    @property
    def by(self) -> str:
        is_told = self.waits is not None and self._queue.number(TIMEOUT) == self.waits * 1000
        return self._queue.by(TIMEOUT) if is_told else "as the server says of its consumers"

    @property
    def runs(self) -> str:
        if self.needed is None:
            return f"a handler may run for {USUAL:g} s unless its consumer says otherwise"
        return "a handler here has no time limit" if self.needed == math.inf else f"a handler here may run for {self.needed:g} s"

    @property
    def fix(self) -> str:
        return mended(self._vhost, self._queue, TIMEOUT, consumer_timeout=enough(self._vhost))

    @property
    def unseen_fix(self) -> str:
        most = enough(self._vhost)
        if has_timeout(self._vhost, self._queue):
            return f"Set it for the queue, where it can be seen:\n{policy(self._vhost, self._queue, consumer_timeout=most)}"
        return (
            f"See what it is, in milliseconds; set it until the next restart, and in rabbitmq.conf (consumer_timeout = {most}):\n"
            f"rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'\n"
            f"rabbitmqctl eval 'application:set_env(rabbit, consumer_timeout, {most}).'"
        )
