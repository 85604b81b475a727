"""Says what flow control has decided, with its evidence: what happened, what it means, what happens next."""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from unpoison.control.admission import TooManyDead
from unpoison.control.breaker import FORGET_AFTER, RAMP_LASTS
from unpoison.control.budget import FLOOR
from unpoison.control.changes import (
    BudgetUsedUp,
    Change,
    Closed,
    Expiring,
    Opened,
    OperatorPause,
    Paused,
    PauseReason,
    Resumed,
    Slowed,
    StillDown,
)
from unpoison.control.evidence import End, Evidence
from unpoison.model.wording import counted, in_words


class Line(NamedTuple):
    level: int
    event: str
    text: str
    fields: Mapping[str, Any] = {}


_ENDS = {
    End.RECOVERED: "is over after {}. What waited for it is started.",
    End.QUIET: (
        f"is over after {{}}: a message that needs it has succeeded, and for {in_words(RAMP_LASTS)} none has failed on it. What "
        f"waited for it is started."
    ),
    End.TOLD: (
        "is over after {}: another consumer has found that it works, or a person has ended it. What waited for it is started."
    ),
    End.FORGOTTEN: (
        f"is forgotten after {{}}: for {in_words(FORGET_AFTER)} nothing was heard of it, so nobody knows whether it is over. "
        f"What waits for it is started; if it is still down, that is noticed again."
    ),
}


def lines(name: str, changes: Sequence[Change], now: float) -> list[Line]:
    """One line for each change; `now` is the clock of the state machines. An outage that pauses the source is told once."""
    pausing = [change.reason for change in changes if isinstance(change, Paused)]
    return [_line(name, each, now) for each in changes if not (isinstance(each, Opened) and each.evidence in pausing)]


def _line(name: str, change: Change, now: float) -> Line:
    match change:
        case Paused(reason):
            return Line(logging.ERROR, "pause", f"{name!r} is paused{explained(name, reason, now)}", evidence_of(reason, now))
        case Resumed(seconds, reason, is_on_probation):
            said = " Dead letters are not admitted until messages have succeeded for a while." if is_on_probation else ""
            fields = evidence_of(reason, now) | {"seconds": round(seconds, 3), "probation": is_on_probation}
            return Line(logging.WARNING, "resume", f"{name!r} resumed after {in_words(seconds)}, slowly at first.{said}", fields)
        case Opened(evidence):
            text = (
                f"{name!r}: {evidence.problem}. {_failed(evidence, now)}. Messages that fail on it wait and are not charged; the "
                f"others go on. One at a time is tried until one succeeds."
            )
            return Line(logging.ERROR, "outage", text, evidence_of(evidence, now))
        case Closed(dependency, seconds, end):
            text = f"{name!r}: the outage of {dependency} {_ENDS[end].format(in_words(seconds))}"
            return Line(logging.WARNING, "outage-over", text, {"dependency": dependency, "seconds": seconds, "reason": str(end)})
        case StillDown(evidence, seconds):
            text = (
                f"{name!r}: {evidence.problem}, for {in_words(seconds)} by now ({'; '.join(evidence.samples)}). What fails on it "
                f"goes on waiting and is not charged. If it works for all other messages, these are poison: breaker=None makes "
                f"them dead letters. To try them all now: unpoison resume {name}"
            )
            return Line(logging.ERROR, "outage-lasts", text, evidence_of(evidence, now))
        case Slowed() | BudgetUsedUp() | Expiring():
            return _warning(name, change, now)


def _warning(name: str, change: Slowed | BudgetUsedUp | Expiring, now: float) -> Line:
    match change:
        case Slowed(evidence, wait):
            begin = f"Nothing of {name!r} starts for {in_words(wait)}; then it" if wait else f"From now on {name!r}"
            text = (
                f"{evidence.dependency} throttles several messages. {_failed(evidence, now, 'were throttled')}. {begin} starts "
                f"at half its rate, and a tenth faster each second. What is throttled is not charged."
            )
            return Line(logging.WARNING, "throttled", text, _facts(evidence, now) | {"wait": wait})
        case BudgetUsedUp(retries, share):
            text = (
                f"The retry budget of {name!r} is used up ({share:.0%} of first starts, at least {FLOOR:g} a second). Retries "
                f"beyond it are put off and not charged, {counted(retries, 'time')} since this was last logged. It is logged "
                f"once a minute."
            )
            return Line(logging.WARNING, "budget", text, {"count": retries, "share": share})
        case Expiring(waited, limit):
            left = max(0.0, limit - waited)
            when = f"in {in_words(left)}" if left else "now"
            text = (
                f"Messages of {name!r} have waited for {in_words(waited)}, and the broker deletes them {in_words(limit)} after "
                f"their publish, the first {when}. Only a RabbitMQ queue that unpoison made keeps them, as dead letters. Have "
                f"them consumed before that, or raise the time at the broker."
            )
            return Line(logging.ERROR, "retention", text, {"waited": round(waited), "limit": limit, "left": round(left)})


def explained(name: str, reason: PauseReason, now: float) -> str:
    """Why a source is paused, what that means and what ends it."""
    match reason:
        case OperatorPause(by, why, since):
            at = datetime.fromtimestamp(since, UTC)
            said = f": {why.rstrip('.')}" if why else ""
            return f" by {by} since {at:%Y-%m-%d %H:%M:%S UTC}{said}. Nothing starts until someone runs: unpoison resume {name}"
        case TooManyDead():
            return (
                f": of {counted(reason.ended, 'message')} that ended within {in_words(reason.within)}, {reason.dead} were to "
                f"become dead letters ({'; '.join(reason.samples)}). From now on they are kept and not charged. A bad deploy or "
                f"a changed schema does this: fix it and restart with the new version. Meanwhile each consumer tries one message "
                f"every {in_words(reason.interval)}, and the first that succeeds resumes the source. To resume it now: unpoison "
                f"resume {name}"
            )
        case Evidence():
            return (
                f": {reason.problem}, and hardly anything else succeeds. {_failed(reason, now)}. No message is charged. One at a "
                f"time is tried; the first that succeeds resumes the source."
            )


def _failed(evidence: Evidence, now: float, did: str = "failed") -> str:
    """Also true when it is told later than it was found out: of a pause, or by another consumer."""
    ago = in_words(max(0.01, now - evidence.since))
    return f"{evidence.messages} different messages {did}, the first {ago} ago ({'; '.join(evidence.samples)})"


def evidence_of(reason: PauseReason, now: float) -> dict[str, Any]:
    """The evidence as data."""
    match reason:
        case OperatorPause(by, why, since):
            return {"reason": "operator", "by": by, "why": why, "paused_at": since}
        case TooManyDead():
            return {
                "reason": "admission",
                "dead": reason.dead,
                "ended": reason.ended,
                "within": reason.within,
                "samples": list(reason.samples),
                "interval": reason.interval,
            }
        case Evidence():
            return {"reason": "outage"} | _facts(reason, now)


def _facts(evidence: Evidence, now: float) -> dict[str, Any]:
    return {
        "dependency": evidence.dependency,
        "messages": evidence.messages,
        "seconds": round(max(0.0, now - evidence.since), 3),
        "samples": list(evidence.samples),
    }
