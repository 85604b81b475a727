"""How is a queue that was there before told from the one that we would make, and does the difference lose messages?"""

import re

from unpoison.brokers.rabbitmq.connection import Refused
from unpoison.port.broker import Finding

PRECONDITION_FAILED = 406


def difference(what: str, name: str, refused: Refused) -> Finding:
    if refused.code != PRECONDITION_FAILED:
        raise refused
    told = refused.text.removeprefix("PRECONDITION_FAILED - ")
    return Finding(
        name,
        f"{what} was there before and differs from what unpoison would make: {told}. It is used as it is.",
        "To have it made anew: stop producers and consumers, move its messages away (shovel), delete it, start again. "
        "What a policy can set needs no such thing: rabbitmqctl set_policy.",
        loses=not name.endswith("-differs"),
    )


_LOSING = {
    "durable": "queue-not-durable",
    "auto_delete": "queue-auto-delete",
    "x-expires": "queue-expires",
    "x-message-ttl": "messages-expire",
}
"""Differences that lose messages, as the doctor calls them. The server names the first difference only; the management API, where
it answers, tells the rest."""


def name_of(queue: str, told: str) -> str:
    found = re.search(r"inequivalent arg '([\w-]+)'.* received (?:none|.*) but current is (?!none)", told)
    name = _LOSING.get(found[1], "") if found else ""
    if found and found[1] == "x-queue-type" and "'stream'" in told.partition("current is")[2]:
        return "stream-queue"
    return "dlq-expires" if name == "messages-expire" and queue.endswith(".dlq") else name or "queue-differs"
