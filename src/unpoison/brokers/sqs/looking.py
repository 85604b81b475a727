"""How is a queue looked through, when SQS shows nothing without handing it out?

Everything is received and hidden from others for a while, and then put back. SQS tells how many there are, about; a question for
more that finds nothing may be wrong before that number is reached, so there it waits for a second at the server.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from unpoison.brokers.sqs.client import AT_ONCE, LOST, in_tens
from unpoison.brokers.sqs.envelope import Raw
from unpoison.brokers.sqs.session import Session
from unpoison.brokers.sqs.taking import receive
from unpoison.errors import UnpoisonError

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
    try:
        _take(session, url, until, most, expected, found)
    except UnpoisonError:
        with suppress(UnpoisonError):  # else it comes back by itself, and whoever looks meanwhile does not see it
            put_back(session, url, list(found.values()))
        raise
    return list(found.values())


def _take(session: Session, url: str, until: float, most: int | None, expected: int, found: dict[str, Raw]) -> None:
    """Into `found`, which has what some requests brought also if another one fails."""
    while (most is None or len(found) < most) and time.monotonic() < until:
        missing = expected - len(found)
        visibility = max(1, int(until - time.monotonic()))
        count = max(1, min(session.address.pollers, -(-missing // AT_ONCE)))
        asking = partial(receive, session.link, url, AT_ONCE, visibility=visibility, seconds=1 if missing > 0 else 0)
        brought: list[Raw] = []
        try:
            session.link.all_of([partial(_into, brought, asking)] * count)
        finally:
            found.update((raw["MessageId"], raw) for raw in brought)
        if not brought:
            break


def _into(brought: list[Raw], asking: Callable[[], list[Raw]]) -> None:
    brought += asking()


def put_back(session: Session, url: str, messages: list[Raw]) -> None:
    """Others see these again."""
    session.link.all_of([partial(_show, session, url, part) for part in in_tens(messages)])


def _show(session: Session, url: str, messages: list[Raw], tries: int = 2) -> None:
    """What is gone meanwhile stays gone; what SQS could not show is tried again, or the next one who looks would not see it."""
    entries = [
        {"Id": str(number), "ReceiptHandle": raw["ReceiptHandle"], "VisibilityTimeout": 0} for number, raw in enumerate(messages)
    ]
    answer = session.link.ask("change_message_visibility_batch", QueueUrl=url, Entries=entries)
    hidden = [messages[int(each["Id"])] for each in answer.get("Failed", ()) if each["Code"] not in LOST]
    if hidden and tries > 1:
        _show(session, url, hidden, tries - 1)


def look_through(session: Session, url: str, most: int) -> list[Raw]:
    """What is in this queue, or some of it. It stays there."""
    found = take_all(session, url, time.monotonic() + HIDE, most, believe=True)
    put_back(session, url, found)
    return found
