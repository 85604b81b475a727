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

from unpoison.brokers.sqs.url import address
from unpoison.errors import ConfigError

LONGEST_NAME = 80
FIFO = ".fifo"
WAYS_OUT = "A source is the name of one queue: letters, digits, '-' and '_', with .fifo at its end for a FIFO queue."


class Names:
    """The names of the queues that belong to one source."""

    def __init__(self, source: str, prefix: str) -> None:
        self.source, self.prefix, self.is_fifo = source, prefix, source.endswith(FIFO)
        base, ending = prefix + source.removesuffix(FIFO), FIFO if self.is_fifo else ""
        own = f"{base}-fifo" if self.is_fifo else base
        self.work = prefix + source
        self.dlq = f"{base}-dlq{ending}"
        self.suspects = f"{base}-suspects{ending}"
        self.replays = f"{own}-replays"
        self.history = f"{own}-dlq-history"
        self.lock = f"{own}-dlq-lock{FIFO}"
        self.starts = f"{own}-starts"
        self.later = f"{own}-later"

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
