"""What is asked of the place where a topic's messages wait until they may be started? shelves.py has both of them."""

from collections.abc import Sequence
from typing import Protocol

from unpoison.brokers.kafka.part import Part
from unpoison.brokers.kafka.record import Record


class Shelf(Protocol):
    """What a topic's messages wait for."""

    def arrange(self, part: Part, records: Sequence[Record]) -> None:
        """Put records that were read where they wait."""

    def sleep(self) -> float:
        """Seconds until the next one's time has come."""

    def tick(self) -> None:
        """Now and then, in the keeper: look for what need not wait any longer."""

    def hand_over(self, part: Part) -> None:
        """The partition goes to another consumer while some of its messages are in somebody's hand here."""

    def close(self) -> None:
        """In the keeper, when it ends: nobody else may close what it uses."""
