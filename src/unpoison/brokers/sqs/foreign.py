"""What does a letter say that SQS itself or another program put into the DLQ, and where does it go back to?

SQS moves a message as it is, and notes from which queue. How often it was received tells little: each look at the DLQ is a
receive too. A program may have put an envelope there instead: then the message is what is inside.
"""

import msgspec

from unpoison.brokers.sqs import envelope
from unpoison.brokers.sqs.envelope import ATTRIBUTE, Raw, Seen
from unpoison.brokers.sqs.names import Names
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Message, as_text
from unpoison.model.wording import counted
from unpoison.port.foreign import celery, json_form
from unpoison.port.foreign.told import Told, known, place
from unpoison.port.reading import read_one

KIND = "sqs.Redriven"


def told(raw: Raw, seen: Seen) -> Told:
    """What this message says, which is none of our letters."""
    return read_one(raw, lambda raw: _told(raw, seen), lambda *_: Told(rule=_rule(raw, "")))


def _told(raw: Raw, seen: Seen) -> Told:
    queue = place(str(raw["Attributes"].get(envelope.CAME_FROM, "")).rpartition(":")[2])
    redriven = Told(rule=_rule(raw, queue), source=queue, original=known({"queue": queue}))
    found = json_form.read(seen.body, has_headers=False) or redriven
    return celery.with_task(found, celery.facts(seen.headers, seen.body), "it is here") or redriven


def _rule(raw: Raw, queue: str) -> str:
    received = f"it was received {counted(envelope.received(raw), 'time')}"
    if queue:
        return f"SQS itself gave it up, in queue {queue!r}; {received}"
    return (
        f"SQS itself gave it up, something else than unpoison put it here, or it is so large that there was no room for a "
        f"reason; {received}"
    )


def opened(seen: Seen, found: Told) -> Seen:
    """What the original message was, as far as that is told."""
    if found.content is None:
        return seen
    message = found.message(Message("", "", b"", seen.key, seen.headers))
    headers = found.content.headers
    inside = seen.envelope if headers is None else msgspec.structs.replace(seen.envelope, headers=dict(headers))
    return msgspec.structs.replace(seen, body=message.body, key=message.key, headers=message.headers, envelope=inside)


def letter(message: Message, seen: Seen, raw: Raw, found: Told) -> DeadLetter:
    times = raw["Attributes"]
    at = int(times.get(envelope.RECEIVED_AT, times.get(envelope.SENT_AT, 0))) / 1000
    receives = {"receives": envelope.received(raw)}
    made = found.letter(message, KIND, at, seen.counters)
    return msgspec.structs.replace(made, message=message, original=receives | made.original)


def origin(names: Names, found: Told | None) -> str | None:
    """The queue that the message came from; None if that is the source of this DLQ, or a helper of unpoison's own beside it."""
    queue = "" if found is None else found.source
    return None if queue in ("", names.source, *names.all()) else queue


def without_theirs(raw: Raw, found: Told) -> Raw:
    """The message without the attributes of an envelope that tells the headers of the original one."""
    if found.content is None or found.content.headers is None:
        return raw
    kept = {name: value for name, value in (raw.get("MessageAttributes") or {}).items() if as_text(name) == ATTRIBUTE}
    return {**raw, "MessageAttributes": kept}
