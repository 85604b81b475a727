"""Which letters are deleted from the store because they are old?"""

import logging
import time
from collections.abc import Callable

from unpoison.model.events import fields
from unpoison.model.wording import counted
from unpoison.store.choice import expiry
from unpoison.store.letters.people import operator
from unpoison.store.letters.port import LetterStore

log = logging.getLogger("unpoison")

EVERY = 600.0
"""Seconds between two looks."""


class Expiry:
    """Deletes the letters that match a filter. It is looked at seldom, since ages grow slowly."""

    def __init__(self, text: str | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._where = expiry(text) if text else None
        self._monotonic, self._next = monotonic, 0.0

    def look(self, store: LetterStore) -> int:
        """How many were deleted. Of several collectors one comes first, and the others find nothing."""
        now = self._monotonic()
        if self._where is None or now < self._next:
            return 0
        deleted = store.expire(self._where, by=operator()).changed
        self._next = now + EVERY
        if deleted:
            extra = fields("expired", count=deleted, where=str(self._where))
            log.info("Deleted %s from the store: expired (%s).", counted(deleted, "dead letter"), self._where, extra=extra)
        return deleted
