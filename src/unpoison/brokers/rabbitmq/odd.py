"""What do messages carry that did not come by our own ways, and what does a consumer make of it?

A dead letter that a shovel, or the management page, moved back into its source: it starts again as a replay. And a header
`x-delivery-attempts` of the sender's own: other programs count with that name too, so it counts only beside a stamp of ours.
"""

import logging

from unpoison import moved_back
from unpoison.brokers.rabbitmq.envelope import Seen
from unpoison.message import Counters
from unpoison.takeovers import CameBack

log = logging.getLogger("unpoison")


class Odd:
    """Says what was seen: letters that were moved back once a second, a strange header once for a source."""

    def __init__(self) -> None:
        self._moved = CameBack(tell=moved_back.tell)
        self._told: set[str] = set()

    def counters(self, source: str, seen: Seen) -> Counters:
        """Those that a message in its source starts with."""
        if seen.stamp is None and seen.senders_attempts is not None and source not in self._told:
            self._told.add(source)
            self._tell(source, seen)
        if seen.letter is None:
            return seen.counters
        self._moved.note(source)
        return moved_back.restarted(seen.letter, seen.counters.replays)

    def tell_due(self) -> None:
        self._moved.tell_due()

    def _tell(self, source: str, seen: Seen) -> None:
        log.warning(
            "Source %r: message %r came with a header x-delivery-attempts: %s that unpoison did not write. The handler sees it; "
            "it is not counted, so the message has all its attempts. Said once for this source.",
            source,
            seen.id,
            seen.headers["x-delivery-attempts"],
            extra={"event": "foreign-attempts", "source": source, "message_id": seen.id},
        )
