"""Counts what happened and logs it.

The library logs to the logger "unpoison" and configures nothing; the command line does that. Each line says what happened,
what it means and what happens next. Successes are counted, not logged. docs/cli.md lists the fields of events.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unpoison.control.changes import Change, Paused, Resumed
from unpoison.errors import UnpoisonError
from unpoison.model import verdict
from unpoison.model.failure import Failure, describe
from unpoison.model.message import Delivery
from unpoison.model.verdict import Ruling
from unpoison.model.wording import counted, first_line, in_words
from unpoison.reporting import control_lines
from unpoison.reporting.consumer_state import ConsumerView
from unpoison.reporting.observer import Event, Observer

log = logging.getLogger("unpoison")

NAMED = 20
"""How many messages of a batch a log line names."""

REMIND_EVERY = 60.0
"""Seconds between two reminders while something stays broken."""


@dataclass(slots=True)
class Tally:
    """How many messages ended how, since the consumer started."""

    done: int = 0
    retried: int = 0
    dead: int = 0
    discarded: int = 0
    released: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did. `sources` has the counts of each source, `stopped_by` the signal that ended the run, if one did."""

    sources: Mapping[str, Tally]
    stopped_by: int | None = None

    @property
    def total(self) -> Tally:
        """The counts of all sources together."""
        counts = [asdict(tally) for tally in self.sources.values()]
        return Tally(**{name: sum(each[name] for each in counts) for name in asdict(Tally())})


class Report:
    """Counts and logs for one app. Safe to use from several consumers' threads.

    `names` maps a source to what log lines call it, where another app in this process has a source of the same name. `observers`
    are told the same, with that name.
    """

    def __init__(self, app: str = "", names: Mapping[str, str] | None = None, observers: Sequence[Observer] = ()) -> None:
        self._app, self._names, self._observers = app, names or {}, observers
        self._failing: set[str] = set()
        """Observers that have failed, each by its type and what it was told."""
        self._lock = threading.Lock()
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._broken_since: dict[str, tuple[float, float]] = {}
        self._broken_by: dict[str, str] = {}
        self._paused_since: dict[str, tuple[float, str]] = {}
        """Sources that flow control has paused: since when, and why at present."""
        self._skipping: set[str] = set()

    def tallies(self) -> dict[str, Tally]:
        with self._lock:
            return {self._name(source): tally for source, tally in self._tallies.items()}

    def _name(self, source: str) -> str:
        return self._names.get(source, source)

    def _fields(self, event: str, source: str, **more: Any) -> dict[str, Any]:
        """What goes with a log line: JSON lines show it."""
        return {"event": event, "source": source} | ({"app": self._app} if self._app else {}) | more

    def _tell(self, what: str, *about: Any) -> None:
        """Have the observers hear of it. One that fails costs its own news, and nothing else."""
        for observer in self._observers:
            try:
                getattr(observer, what)(*about)
            except Exception as error:
                self._observer_failed(f"{type(observer).__name__}.{what}", error)

    def watch(self, source: str, view: ConsumerView) -> None:
        self._tell("watch", self._name(source), view)

    def close(self) -> None:
        """The run is over."""
        self._tell("close")

    def _observer_failed(self, where: str, error: Exception) -> None:
        with self._lock:
            if where in self._failing:
                return
            self._failing.add(where)
        text = "%s failed, so what it shows is incomplete; messages are not affected. This is logged once. %s: %s"
        log.error(text, where, *describe(error)[:2], exc_info=error, extra={"event": "observer-failed", "observer": where})

    def done(self, source: str, count: int) -> None:
        with self._lock:
            self._tallies[source].done += count
        if count:
            self._tell("done", self._name(source), count)

    def skips_tombstones(self, source: str) -> None:
        """Logged once: a compacted topic may hold as many tombstones as it has keys."""
        with self._lock:
            if source in self._skipping:
                return
            self._skipping.add(source)
        text = "Tombstones of %r are done without calling the handler (tombstones='skip'). This is logged once."
        log.info(text, self._name(source), extra=self._fields("tombstones-skipped", source))

    def released(self, source: str, count: int, *, interrupted: bool) -> None:
        if count == 0:
            return
        with self._lock:
            self._tallies[source].released += count
        how = "cut off by the stop" if interrupted else "not started"
        what = counted(count, "message")
        extra = self._fields("release", source, count=count)
        log.info("Released %s back to %r: %s, not charged.", what, self._name(source), how, extra=extra)

    def failed(self, event: Event, letter_id: str | None = None) -> None:
        """Log what happens to the message now, and why. `letter_id` is that of its dead letter, if the broker gave one."""
        delivery, failure = event.delivery, event.failure
        where = f"Message {delivery.id!r} on {self._name(delivery.source)!r}"
        error = ": ".join(filter(None, (failure.type_name, first_line(failure.text))))
        with self._lock:
            tally = self._tallies[delivery.source]
            match event.ruling.verdict:
                case verdict.Retry(after, charged):
                    tally.retried += 1
                    soon, rule = after.total_seconds(), first_line(event.ruling.rule)
                    how = f"failed in attempt {delivery.attempt}" if failure.started else "was not started"
                    failed = f"{where} {how} ({event.ruling.classification}: {error})."
                    again = f"Next attempt in {in_words(soon)}"
                    text = f"{failed} {again} ({rule})." if charged else f"{failed} It is not charged ({rule}). {again}."
                    log.warning("%s", text, extra=self._of("retry", event, delay=soon, charged=charged))
                case verdict.DeadLetter():
                    tally.dead += 1
                    extra = self._of("dead", event, letter_id=letter_id)
                    when = f"after attempt {event.metadata.attempt}" if failure.started else "without a start"
                    inspect = f" Inspect: unpoison dlq show {letter_id}" if letter_id else ""
                    log.error("%s is a dead letter %s. %s (%s).%s", where, when, error, _why(event.ruling), inspect, extra=extra)
                case verdict.Discard(reason):
                    tally.discarded += 1
                    log.info("%s was discarded by its handler: %s", where, reason, extra=self._of("discard", event))
        self._tell("failed", self._name(delivery.source), event, letter_id)

    def _of(self, name: str, event: Event, **more: Any) -> dict[str, Any]:
        ruling = event.ruling
        return self._judged(name, event.delivery, event.failure, ruling.classification, ruling.rule, **more)

    def _judged(
        self, name: str, delivery: Delivery, failure: Failure, classification: str, rule: str, **more: Any
    ) -> dict[str, Any]:
        return self._fields(
            name,
            delivery.source,
            message_id=delivery.id,
            attempt=delivery.attempt,
            classification=str(classification),
            rule=rule,
            error_type=failure.type_name,
            fingerprint=failure.fingerprint,
            **more,
        )

    def paused(self, source: str, error: UnpoisonError) -> None:
        """The source is paused. Logged once, and again every minute while it lasts."""
        now = time.monotonic()
        self._tell("lost_broker", self._name(source), error)
        with self._lock:
            self._broken_by[source] = str(error)
            since, logged = self._broken_since.get(source, (now, float("-inf")))
            if now - logged < REMIND_EVERY:
                return
            self._broken_since[source] = (since, now)
        lasted = "" if since == now else f" for {now - since:.0f} s"
        log.error(
            "%r is paused%s; no message is lost. Retrying. %s",
            self._name(source),
            lasted,
            error,
            extra=self._fields("pause", source),
        )

    def longest_pause(self) -> tuple[str, float, str] | None:
        """The source that has been paused for longest, for how many seconds, and why."""
        with self._lock:
            broken = {source: (since, self._broken_by[source]) for source, (since, _) in self._broken_since.items()}
            paused = {**self._paused_since, **broken}
            if not paused:
                return None
            source, (since, why) = min(paused.items(), key=lambda each: each[1][0])
            return self._name(source), time.monotonic() - since, why

    def controlled(self, source: str, changes: Sequence[Change], now: float) -> None:
        """What flow control has decided; `now` is its clock."""
        for line in control_lines.lines(self._name(source), changes, now):
            log.log(line.level, "%s", line.text, extra=self._fields(line.event, source, **line.fields))
        for change in changes:
            with self._lock:
                match change:
                    case Paused(reason):
                        why = f"It is paused{control_lines.explained(self._name(source), reason, now)}."
                        since, _ = self._paused_since.get(source, (time.monotonic(), ""))
                        self._paused_since[source] = (since, why)
                    case Resumed():
                        self._paused_since.pop(source, None)
        self._tell("controlled", self._name(source), changes, now)

    def waiting(self, source: str, what: str, **fields: object) -> None:
        """Why a run with --until-empty goes on."""
        log.info("Source %r is not empty yet: %s.", self._name(source), what, extra=self._fields("waiting", source, **fields))

    def resumed(self, source: str) -> None:
        if not self._broken_since:  # the ordinary case, without a lock
            return
        with self._lock:
            broken = self._broken_since.pop(source, None)
        if broken is not None:
            lasted = time.monotonic() - broken[0]
            extra = self._fields("resume", source, seconds=round(lasted, 3))
            log.warning("%r resumed after %.1f s.", self._name(source), lasted, extra=extra)
            self._tell("found_broker", self._name(source))

    def started(self, source: str, url: str, where: str) -> None:
        """`url` has no passwords in it; `where` says where its handlers run."""
        log.info("Consuming %r from %s %s", self._name(source), url, where, extra=self._fields("start", source))

    def ownership_lost(self, source: str, error: UnpoisonError) -> None:
        log.warning("Source %r: %s", self._name(source), error, extra=self._fields("ownership-lost", source))

    def given_up(self, delivery: Delivery, failure: Failure, error: Exception) -> None:
        """A message was given up, and the code that judges it failed on it too."""
        with self._lock:
            self._tallies[delivery.source].dead += 1
        log.error(
            "Message %r on %r is a dead letter: %s. The letter says no more, because judging the message raised %s: %s. This is "
            "a bug in unpoison: please report the traceback.",
            delivery.id,
            self._name(delivery.source),
            failure.rule,
            *describe(error)[:2],
            exc_info=error,
            extra=self._judged("dead", delivery, failure, failure.classification, failure.rule, letter_id=None),
        )
        self._tell("given_up", self._name(delivery.source), delivery, failure)

    def broke(self, source: str, ids: Sequence[str], error: Exception) -> None:
        """A consumer ends because of a fault in unpoison, with these messages in hand."""
        named = ", ".join(map(repr, ids[:NAMED])) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
        log.error(
            "The consumer of %r failed unexpectedly, %s: %s. No message is lost: what it held comes back as if it had been "
            "killed. It was working on %s. Start it again: if one message causes this, it will run alone and become a dead "
            "letter. This is a bug in unpoison: please report the traceback.",
            self._name(source),
            *describe(error)[:2],
            f"{counted(len(ids), 'message')} ({named})" if ids else "no message",
            exc_info=error,
            extra=self._fields("broken", source, message_ids=list(ids[:NAMED])),
        )

    def left_running(self, source: str, count: int) -> None:
        log.warning(
            "Still running after the grace period: %s on %r. Threads cannot be killed; the work is redelivered when this process "
            "ends.",
            counted(count, "message"),
            self._name(source),
            extra=self._fields("left-running", source, count=count),
        )


def _why(ruling: Ruling) -> str:
    """The classification, and the limit that ended it where that is what decided."""
    name, _, why = ruling.rule.partition(": ")
    kind = str(ruling.classification)
    return kind if name == kind else f"{kind}; {first_line(why)}"
