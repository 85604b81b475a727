"""How is a queue looked through, when SQS shows nothing without handing it out?

Everything is received and hidden from others for a while, and then put back. SQS tells how many there are, about; a question for
more that finds nothing may be wrong before that number is reached, so there it waits for a second at the server.
"""

import time
from functools import partial

from bezoar.brokers.sqs.client import AT_ONCE, in_tens
from bezoar.brokers.sqs.envelope import Raw
from bezoar.brokers.sqs.session import Session
from bezoar.brokers.sqs.taking import receive

HIDE = 10


def take_all(session: Session, url: str, until: float, most: int | None = None, *, believe: bool = False) -> list[Raw]:
    """Everything that can be received, each once; hidden from others until then, by our own clock, or until it is put back.

    Ends when that time is over, whatever is left: what was taken first can be received again from then on, for ever.
    `believe`: a queue of which SQS says that it is empty is not asked.
    """
    expected, _, held = session.counts(url)
    if believe and not expected and not held:
        return []
    found: dict[str, Raw] = {}
    while (most is None or len(found) < most) and time.monotonic() < until:
        missing = expected - len(found)
        visibility = max(1, int(until - time.monotonic()))
        count = max(1, min(session.address.pollers, -(-missing // AT_ONCE)))
        asking = partial(receive, session.link, url, AT_ONCE, visibility=visibility, seconds=1 if missing > 0 else 0)
        brought = [raw for answer in session.link.all_of([asking] * count) for raw in answer]
        found.update((raw["MessageId"], raw) for raw in brought)
        if not brought:
            break
    return list(found.values())


def put_back(session: Session, url: str, messages: list[Raw]) -> None:
    """Others see these again."""
    session.link.all_of([partial(_show, session, url, part) for part in in_tens(messages)])


def _show(session: Session, url: str, messages: list[Raw]) -> None:
    entries = [
        {"Id": str(number), "ReceiptHandle": raw["ReceiptHandle"], "VisibilityTimeout": 0} for number, raw in enumerate(messages)
    ]
    session.link.ask("change_message_visibility_batch", QueueUrl=url, Entries=entries)


def look_through(session: Session, url: str, most: int) -> list[Raw]:
    """What is in this queue, or some of it. It stays there."""
    found = take_all(session, url, time.monotonic() + HIDE, most, believe=True)
    put_back(session, url, found)
    return found
