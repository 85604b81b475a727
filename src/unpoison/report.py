"""What is said about what happened: counts and log lines.

The library logs to the logger "unpoison" and configures nothing; the command line does that. Each line says what happened,
what it means and what happens next. Successes are counted, not logged.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from unpoison import verdict
from unpoison.errors import UnpoisonError
from unpoison.failure import Failure, describe
from unpoison.handler import MessageMetadata
from unpoison.message import Counters, Delivery
from unpoison.verdict import Ruling

log = logging.getLogger("unpoison")

NAMED = 20
"""How many messages of a batch a log line names."""

REMIND_EVERY = 60.0
"""Seconds between two reminders while something stays broken."""


@dataclass(frozen=True, slots=True)
class Event:
    """One failure, judged: everything there is to say about it."""

    delivery: Delivery
    counters: Counters
    metadata: MessageMetadata
    failure: Failure
    ruling: Ruling
    exception: BaseException | None = None


@dataclass(slots=True)
class Tally:
    """How many messages ended how, since the consumer started."""

    done: int = 0
    retried: int = 0
    dead: int = 0
    discarded: int = 0
    released: int = 0


class Report:
    """Counts and tells. Safe to use from several consumers' threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._broken_since: dict[str, tuple[float, float]] = {}

    def tallies(self) -> dict[str, Tally]:
        with self._lock:
            return dict(self._tallies)

    def done(self, source: str, count: int) -> None:
        with self._lock:
            self._tallies[source].done += count

    def released(self, source: str, count: int, *, interrupted: bool) -> None:
        if count == 0:
            return
        with self._lock:
            self._tallies[source].released += count
        how = "cut off by the stop and" if interrupted else "not started and"
        log.info("Handed %d messages on %r back, %s not charged.", count, source, how, extra={"event": "release"})

    def failed(self, event: Event) -> None:
        """Say what happens to the message now, and why."""
        delivery, failure = event.delivery, event.failure
        where = f"Message {delivery.id!r} on {delivery.source!r}"
        what = f"{event.ruling.classification}: {failure.type_name}: {_first_line(failure.text)}"
        extra = {
            "message_id": delivery.id,
            "source": delivery.source,
            "rule": event.ruling.rule,
            "fingerprint": failure.fingerprint,
        }
        with self._lock:
            tally = self._tallies[delivery.source]
            match event.ruling.verdict:
                case verdict.Retry(after, charged):
                    tally.retried += 1
                    text, soon = f"{where} failed in attempt {delivery.attempt} ({what}).", after.total_seconds()
                    why = "" if charged else f" That is not charged ({_first_line(event.ruling.rule)})."
                    log.warning("%s%s Next attempt in %s.", text, why, in_words(soon), extra=extra | {"event": "retry"})
                case verdict.DeadLetter(reason):
                    tally.dead += 1
                    log.error("%s is a dead letter: %s. It says: %s", where, reason, what, extra=extra | {"event": "dead"})
                case verdict.Discard(reason):
                    tally.discarded += 1
                    log.info("%s was discarded by its handler: %s", where, reason, extra=extra | {"event": "discard"})

    def paused(self, source: str, error: UnpoisonError) -> None:
        """The source stands still. Said once, and again every minute while it lasts."""
        now = time.monotonic()
        with self._lock:
            since, told = self._broken_since.get(source, (now, float("-inf")))
            if now - told < REMIND_EVERY:
                return
            self._broken_since[source] = (since, now)
        lasted = "" if since == now else f" It has lasted {now - since:.0f} s."
        log.error(
            "Source %r stands still, nothing of it is lost; trying again until it works.%s %s",
            source,
            lasted,
            error,
            extra={"event": "pause"},
        )

    def resumed(self, source: str) -> None:
        if not self._broken_since:  # the ordinary case, without a lock
            return
        with self._lock:
            broken = self._broken_since.pop(source, None)
        if broken is not None:
            log.warning("Source %r goes on after %.1f s.", source, time.monotonic() - broken[0], extra={"event": "resume"})

    def ownership_lost(self, source: str, error: UnpoisonError) -> None:
        log.warning("Source %r: %s", source, error, extra={"event": "ownership-lost"})

    def given_up(self, delivery: Delivery, failure: Failure, error: Exception) -> None:
        """A message was convicted, and the code that judges it failed on it too."""
        with self._lock:
            self._tallies[delivery.source].dead += 1
        log.error(
            "Message %r on %r is a dead letter: %s. Its letter says little, since judging it raised %s: %s. That is a bug in "
            "unpoison: report the traceback.",
            delivery.id,
            delivery.source,
            failure.rule,
            *describe(error)[:2],
            exc_info=error,
            extra={"event": "dead", "message_id": delivery.id, "source": delivery.source},
        )

    def broke(self, source: str, ids: Sequence[str], error: Exception) -> None:
        """A consumer ends on a fault that nobody expected, with these messages in hand."""
        named = ", ".join(map(repr, ids[:NAMED])) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
        log.error(
            "Source %r: its consumer ends on a fault that was not expected, %s: %s. Nothing is lost. It was at work on %s; "
            "what it held comes back as if it had been killed. Start it again: if one message causes this, it will run alone and "
            "end as a dead letter. This is a bug in unpoison: report the traceback.",
            source,
            *describe(error)[:2],
            f"{len(ids)} messages ({named})" if ids else "no message",
            exc_info=error,
            extra={"event": "broken", "source": source, "message_ids": list(ids[:NAMED])},
        )

    def left_running(self, source: str, count: int) -> None:
        log.warning(
            "%d messages on %r still run after the grace period. Threads cannot be ended; they come back when this process ends.",
            count,
            source,
            extra={"event": "left-running"},
        )


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:200] + "…"


def in_words(seconds: float) -> str:
    """A duration as a person says it: 0.35 s, 90 s, 12 min, 5 h."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
