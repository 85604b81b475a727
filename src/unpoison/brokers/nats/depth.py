"""How many messages of a source are where?

Messages move from the source and from the replays to the retries, and never back: so these are counted last, and all kinds
of them by the one number that the stream has. Nothing that moves meanwhile can be missed.
"""

from unpoison.brokers.nats.link import Link
from unpoison.brokers.nats.topology import At, Topic
from unpoison.port.broker import Depth


def depth(link: Link, topic: Topic) -> Depth:
    what = "counting messages"
    first = link.ask_all([_info(topic.work), _info(topic.replays)], what)
    names = topic.names
    again, suspects, retries, letters = link.ask_all(
        [
            _info(topic.again),
            _info(topic.suspects),
            (f"STREAM.INFO.{names.retries}", None),
            (f"STREAM.INFO.{names.dlq}", {"subjects_filter": names.dead}),
        ],
        what,
    )
    ready = sum(info["num_pending"] for info in first)
    leased = sum(info["num_ack_pending"] for info in first)
    kept = retries["state"]["messages"]
    running = min(kept, again["num_ack_pending"] + suspects["num_ack_pending"])
    waiting = min(kept - running, again["num_pending"] + suspects["num_pending"])
    dead = sum((letters["state"].get("subjects") or {}).values())
    return Depth(ready + waiting, kept - running - waiting, leased + running, dead)


def _info(at: At) -> tuple[str, None]:
    return f"CONSUMER.INFO.{at.stream}.{at.consumer}", None
