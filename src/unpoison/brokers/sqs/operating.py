"""How do two people who work on one DLQ not get into each other's way?

Letters can only be looked at by taking them out for a moment; whoever looks meanwhile would see nothing. So each look and each
change is done by whoever holds the message in a FIFO queue of its own. All messages there are of one group, of which SQS hands
out one at a time: so it does not matter if two people put one there. Whoever is killed holds it until its time is over, and by
then all letters that were taken can be seen again.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from unpoison.brokers.sqs.client import NoQueue
from unpoison.brokers.sqs.envelope import GROUP
from unpoison.brokers.sqs.session import Session
from unpoison.brokers.sqs.taking import receive
from unpoison.brokers.sqs.topology import Topic
from unpoison.brokers.sqs.writing import unique
from unpoison.errors import BrokerUnavailable, UnpoisonError

PATIENCE = 120.0
ASK_AGAIN = (0.02, 0.05, 0.1, 0.2)
PER_LETTER = 0.02
"""Seconds that a look may take for each letter, beside what it may take at least."""


@contextmanager
def locked(session: Session, topic: Topic) -> Iterator[float]:
    """Nobody else works on the letters of this source in the meantime. Gives until when that holds, by our own clock."""
    try:
        with _held(session, topic) as until:
            yield until
    except NoQueue as gone:
        session.remake(topic.names.source)
        raise BrokerUnavailable(f"{gone} What is missing was made anew. Try again.") from None


@contextmanager
def _held(session: Session, topic: Topic) -> Iterator[float]:
    letters = sum(session.counts(topic.dlq)) + sum(session.counts(topic.history))
    lasts = int(session.address.visibility + PER_LETTER * letters) + 1
    ends, tries = time.monotonic() + PATIENCE + lasts, 0
    while True:
        asked_at = time.monotonic()
        found = receive(session.link, topic.lock, 1, visibility=lasts)
        if found:
            break
        if time.monotonic() > ends:
            raise BrokerUnavailable(f"Somebody else has been working on {topic.names.dlq!r} for {PATIENCE:g} s. Try again later.")
        if not any(session.counts(topic.lock)):
            _put_one_there(session, topic)
        time.sleep(ASK_AGAIN[min(tries, len(ASK_AGAIN) - 1)])
        tries += 1
    try:
        yield asked_at + lasts
    finally:
        with suppress(UnpoisonError):  # else it comes back by itself
            session.link.ask(
                "change_message_visibility", QueueUrl=topic.lock, ReceiptHandle=found[0]["ReceiptHandle"], VisibilityTimeout=0
            )


def _put_one_there(session: Session, topic: Topic) -> None:
    entry = {GROUP: "lock", "MessageDeduplicationId": unique(), "MessageBody": "Whoever holds this works on the dead letters."}
    session.link.ask("send_message", QueueUrl=topic.lock, **entry)


def check_time(until: float, topic: Topic) -> None:
    """Refuse to change anything once others may see the letters too."""
    if time.monotonic() >= until:
        raise BrokerUnavailable(
            f"Looking through {topic.names.dlq!r} took longer than its letters can be kept from others; nothing was changed. "
            f"Try again; a larger visibility in the URL gives it more time."
        )
