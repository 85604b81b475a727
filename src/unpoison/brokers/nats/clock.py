"""What time is it at the server? Delays go by its clock: those of our hosts may differ by minutes."""

import time
from datetime import UTC, datetime
from typing import Any

from unpoison.brokers.nats.link import Link
from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.writing import unique

MEASURE_AGAIN = 60.0


class Clock:
    """The server's clock, seen from here; looked at anew now and then."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._measured_at: float | None = None

    def now(self, link: Link, names: Names) -> float:
        started = time.monotonic()
        if self._measured_at is None or started - self._measured_at > MEASURE_AGAIN:
            told = _told(link, names)
            self._ahead = told - time.time()
            self._measured_at = started
        return time.time() + self._ahead


def _told(link: Link, names: Names) -> float:
    """Newer servers put the time on every answer; with older ones a message is stored, looked at and removed."""
    answer = link.ask(f"STREAM.INFO.{names.dlq}", what="asking for the time")
    if "ts" in answer:
        return moment(answer["ts"])
    subject = f"{names.starts}.clock-{unique()}"
    link.request(subject.encode(), b"", "asking for the time")
    message: Any = link.ask(f"STREAM.MSG.GET.{names.dlq}", {"last_by_subj": subject}, "asking for the time")["message"]
    link.ask(f"STREAM.MSG.DELETE.{names.dlq}", {"seq": message["seq"], "no_erase": True}, "asking for the time")
    return moment(message["time"])


def moment(text: str) -> float:
    """A time as the server writes it, with nanoseconds."""
    head, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(head).replace(tzinfo=UTC).timestamp() + float(f"0.{rest or 0}")


def text(moment_: float) -> str:
    """A time as the server reads it."""
    return datetime.fromtimestamp(moment_, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
