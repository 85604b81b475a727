"""Which process of a fleet tells a thing? The store says so. Without one, and while it is away, each process tells by itself."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from unpoison.errors import UnpoisonError
from unpoison.model.events import fields
from unpoison.notifying.limits import MOST, MOST_OF_LETTERS, PERIOD, WINDOW, WORSE
from unpoison.notifying.notice import OF_LETTERS, Kind, Notice
from unpoison.store.notices import ToldNotices

log = logging.getLogger("unpoison")

Answer = TypeVar("Answer")

AGAIN_AFTER = 10.0
"""Seconds after which a store that was away is tried again."""
NEVER = 1e12
"""So many times worse that a new group is told once."""


class Claims:
    """Used by the thread of the notifier alone."""

    def __init__(self, told: ToldNotices | None, *, create: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._told, self._create, self._clock = told, create, clock
        self._is_open = self._is_away = False
        self._try_at = float("-inf")
        self._expected: dict[str, tuple[Sequence[str], int]] = {}
        """By the id of a notice: what was claimed for it, and how many targets have not answered."""

    def granted(self, notices: Sequence[Notice]) -> list[Notice]:
        """Those that this process tells."""
        return [notice for group in _alike(notices) for notice in self._of_group(group)]

    def _of_group(self, notices: Sequence[Notice]) -> Sequence[Notice]:
        first = notices[0]
        period, worse = (None if first.is_again else PERIOD, float(WORSE))
        if first.kind is Kind.NEW_GROUP:
            period, worse = None, NEVER

        def ask(told: ToldNotices) -> set[str]:
            if first.is_end:
                return {notice.subject for notice in notices if told.end(notice.subject)}
            return told.claim({notice.subject: notice.size for notice in notices}, period, worse)

        found = self._ask(ask)
        return notices if found is None else [notice for notice in notices if notice.subject in found]

    def has_room(self, notice: Notice) -> bool:
        """Whether the fleet may send one more now."""
        counts = [("all", MOST)]
        if notice.kind is Kind.SUMMARY:
            counts = [("summary", 1)]
        elif notice.kind in OF_LETTERS:
            counts = [("letters", MOST_OF_LETTERS), *counts]
        return all(self._ask(partial(_count, what=what, most=most)) is not False for what, most in counts)

    def expect(self, id: str, subjects: Sequence[str], targets: int) -> None:  # noqa: A002 - of a notice
        if self._told is not None and subjects:
            self._expected[id] = (subjects, targets)

    def answered(self, id: str, is_sent: bool) -> None:  # noqa: A002
        """One target has taken a notice, or it was given up there."""
        if id not in self._expected:
            return
        subjects, left = self._expected.pop(id)
        if is_sent:
            self.confirm(subjects)
        elif left > 1:
            self._expected[id] = (subjects, left - 1)
        else:
            self._ask(lambda told: told.take_back(subjects))

    def confirm(self, subjects: Iterable[str]) -> None:
        if listed := list(subjects):
            self._ask(lambda told: told.confirm(listed))

    def close(self) -> None:
        if self._told is not None and self._is_open:
            self._told.close()

    def _ask(self, question: Callable[[ToldNotices], Answer]) -> Answer | None:
        """None where there is no store, or none that answers."""
        if self._told is None or (not self._is_open and self._clock() < self._try_at):
            return None
        try:
            if not self._is_open:
                self._told.open(create=self._create)
                self._is_open = True
            answer = question(self._told)
        except UnpoisonError as error:
            self._goes_away(error)
            return None
        self._is_away = False
        return answer

    def _goes_away(self, error: UnpoisonError) -> None:
        if not self._is_away:
            text = "%s Until it can be used, each process tells by itself what it finds, so the same may be told several times."
            log.warning(text, error, extra=fields("notify-store-away"))
        if self._is_open and self._told is not None:
            self._told.close()
        self._is_open, self._is_away, self._try_at = False, True, self._clock() + AGAIN_AFTER


def _count(told: ToldNotices, what: str, most: int) -> bool:
    return told.count(what, WINDOW, most)


def _alike(notices: Sequence[Notice]) -> Iterable[Sequence[Notice]]:
    """Those that are asked in one question: a flood of new groups in one transaction, the others one by one."""
    groups = [notice for notice in notices if notice.kind is Kind.NEW_GROUP]
    return [*([groups] if groups else []), *([notice] for notice in notices if notice.kind is not Kind.NEW_GROUP)]
