"""How many messages of a source are where?

SQS counts approximately, and one queue at a time. Messages move from the replays to the source, and from there to those that must
run alone: counted in this order, one that moves meanwhile is seen at least once. Those of a FIFO source also go to where they
wait, and come back: so its queues are counted before that and after it.
"""

from unpoison.brokers.sqs.session import Session
from unpoison.brokers.sqs.topology import Topic
from unpoison.port.broker import Depth


def depth(session: Session, topic: Topic, waiting_here: int) -> Depth:
    queues = [topic.replays, topic.work, topic.suspects]
    if topic.later is not None:
        queues += [topic.later, topic.work, topic.suspects]
    counted: dict[str, tuple[int, ...]] = {}
    for url in queues:
        counts = session.counts(url)
        counted[url] = tuple(map(max, counts, counted.get(url, counts)))
    ready, delayed, leased = map(sum, zip(*(counts for url, counts in counted.items() if url != topic.later), strict=True))
    if topic.later is not None:
        delayed += sum(counted[topic.later])
    dead, _, looked_at = session.counts(topic.dlq)
    return Depth(ready + waiting_here, delayed, max(0, leased - waiting_here), dead + looked_at)
