"""The names of queues in SQS.

A source is a queue. For the source `orders`, and for `orders.fifo`:

    orders               orders.fifo                the messages
    orders-dlq           orders-dlq.fifo            dead letters
    orders-suspects      orders-suspects.fifo       messages that must run alone: here a receive counts as a start
    orders-replays       orders-fifo-replays        letters that are sent again, until a consumer moves them to the source
    orders-dlq-history   orders-fifo-dlq-history    what became of letters
    orders-dlq-lock.fifo orders-fifo-dlq-lock.fifo  the holder of its one message works on the dead letters
    orders-starts        orders-fifo-starts         who started a message that must run alone
                         orders-fifo-later          messages that wait: in a FIFO queue none can
"""

from typing import NamedTuple

from unpoison.brokers.sqs.url import address
from unpoison.errors import ConfigError

LONGEST_NAME = 80
FIFO = ".fifo"
WAYS_OUT = "A source is the name of one queue: letters, digits, '-' and '_', with .fifo at its end for a FIFO queue."


class Names(NamedTuple):
    """The names of the queues that belong to one source."""

    source: str
    prefix: str

    @property
    def is_fifo(self) -> bool:
        return self.source.endswith(FIFO)

    @property
    def _base(self) -> str:
        return self.prefix + self.source.removesuffix(FIFO)

    @property
    def _own(self) -> str:
        return f"{self._base}-fifo" if self.is_fifo else self._base

    @property
    def _ending(self) -> str:
        return FIFO if self.is_fifo else ""

    @property
    def work(self) -> str:
        return self.prefix + self.source

    @property
    def dlq(self) -> str:
        return f"{self._base}-dlq{self._ending}"

    @property
    def suspects(self) -> str:
        return f"{self._base}-suspects{self._ending}"

    @property
    def replays(self) -> str:
        return f"{self._own}-replays"

    @property
    def history(self) -> str:
        return f"{self._own}-dlq-history"

    @property
    def lock(self) -> str:
        return f"{self._own}-dlq-lock{FIFO}"

    @property
    def starts(self) -> str:
        return f"{self._own}-starts"

    @property
    def later(self) -> str:
        return f"{self._own}-later"

    def all(self) -> list[str]:
        """Every queue that the source has."""
        own = [self.work, self.dlq, self.suspects, self.replays, self.history, self.lock, self.starts]
        return [*own, self.later] if self.is_fifo else own


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - every broker is asked the same
    """The queues of a source, and what each is for."""
    names = Names(source, address(url).prefix)
    return {
        names.work: "its messages",
        names.dlq: "its dead letters",
        names.suspects: "messages that run alone",
        names.replays: "letters that are sent again",
        names.history: "what became of dead letters",
        names.lock: "who works on dead letters",
        names.starts: "who started a message",
        names.later: "messages that wait",
    }


def check_name(source: str, prefix: str) -> Names:
    """The names of a source. Raises ConfigError if no queue can be called like this."""
    base = source.removesuffix(FIFO)
    wrong = sorted({each for each in base if not (each.isascii() and (each.isalnum() or each in "-_"))})
    if not base or wrong:
        what = f"has {wrong[0]!r} in it, which" if wrong else "is empty, and that"
        raise ConfigError(f"Source {source[:80]!r} {what} no name of an SQS queue can have. {WAYS_OUT}")
    names = Names(source, prefix)
    longest = max((names.lock, names.history), key=len)
    if len(longest) > LONGEST_NAME:
        raise ConfigError(
            f"Source {source!r} is too long: its queue {longest!r} would have {len(longest)} characters, and SQS takes "
            f"{LONGEST_NAME}. Shorten it by {len(longest) - LONGEST_NAME}."
        )
    return names
