"""Who is told what happens to messages, besides the log: metrics, notifiers."""

from collections.abc import Sequence
from dataclasses import dataclass

from unpoison.control.changes import Change
from unpoison.errors import UnpoisonError
from unpoison.model.failure import Failure
from unpoison.model.message import Counters, Delivery, MessageMetadata
from unpoison.model.verdict import Ruling
from unpoison.reporting.consumer_state import ConsumerView


@dataclass(frozen=True, slots=True)
class Event:
    """One failure, judged: everything there is to say about it."""

    delivery: Delivery
    counters: Counters
    metadata: MessageMetadata
    failure: Failure
    ruling: Ruling
    exception: BaseException | None = None


class Observer:
    """Told after it was stored, in the threads of consumers, so each method returns at once and does no I/O. `source` is the name
    of the source as log lines have it. What is not overridden is not listened to."""

    def watch(self, source: str, view: ConsumerView) -> None:
        """This source is consumed from now on. `view` shows its consumer at any time, to any thread."""

    def close(self) -> None:
        """The run is over. Told once for each app."""

    def done(self, source: str, count: int) -> None:
        """So many messages were handled."""

    def failed(self, source: str, event: Event, letter_id: str | None) -> None:
        """A start has failed, or a message could not be started. `event.ruling` says whether it is retried, dead or discarded."""

    def given_up(self, source: str, delivery: Delivery, failure: Failure) -> None:
        """A message is a dead letter, and the code that judges it has failed."""

    def controlled(self, source: str, changes: Sequence[Change], now: float) -> None:
        """What flow control has decided; `now` is its clock."""

    def lost_broker(self, source: str, error: UnpoisonError) -> None:
        """The broker cannot be used, or cannot store dead letters. Told at each try."""

    def found_broker(self, source: str) -> None:
        """It can be used again."""
