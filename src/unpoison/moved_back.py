"""What if a broker's own tool moves a dead letter back into its source?

A shovel, the redrive of SQS or a console producer knows nothing of counters: the message comes with all its attempts used and
would be a dead letter again at once. Somebody wanted it to run, so it starts as a replay does, and keeps the letter's history. An
adapter calls this for a message in the source that carries the marks of a letter that waits.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from unpoison.attempts import HISTORY_LIMIT
from unpoison.deadletters.record import DeadLetter
from unpoison.message import MOST_COUNTED, Counters
from unpoison.plural import counted
from unpoison.stored import UNREADABLE

log = logging.getLogger("unpoison")

_NO_MESSAGE: dict[str, Any] = {"id": "", "source": "", "key": None, "headers": {}, "body": b""}


def restarted(record: Mapping[str, Any] | str | bytes | None, replays: int = 0) -> Counters:
    """The counters with which such a message starts.

    `record` is what the letter tells of itself, as JSON text or decoded. Where that cannot be read, all that is known are the
    `replays` that the message counts.
    """
    try:
        told = msgspec.json.decode(record) if isinstance(record, str | bytes) else record
        letter = msgspec.convert({**told, "message": _NO_MESSAGE}, DeadLetter)  # type: ignore[dict-item]
    except UNREADABLE:
        return Counters(replays=min(max(0, replays) + 1, MOST_COUNTED))
    return msgspec.structs.replace(letter.replayed(), history=letter.history[-HISTORY_LIMIT:])


def tell(source: str, count: int) -> None:
    """Said once for many: see `takeovers.CameBack`."""
    log.info(
        "Source %r: another tool moved %s back from the DLQ. Started again as replays, with their history.",
        source,
        counted(count, "dead letter"),
        extra={"event": "moved-back", "source": source, "count": count},
    )
