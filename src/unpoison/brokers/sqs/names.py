"""The names of queues in SQS.

A source is a queue. For the source `orders`, and for `orders.fifo`:

    orders               orders.fifo                the messages
    orders-dlq           orders-dlq.fifo            dead letters, unless another name is given for it
    orders-suspects      orders-suspects.fifo       messages that must run alone: here a receive counts as a start
    orders-replays       orders-fifo-replays        letters that are sent again, until a consumer moves them to the source
    orders-dlq-history   orders-fifo-dlq-history    what became of letters
    orders-dlq-lock.fifo orders-fifo-dlq-lock.fifo  the holder of its one message works on the dead letters
    orders-starts        orders-fifo-starts         who started a message that must run alone
                         orders-fifo-later          messages that wait: in a FIFO queue none can
"""

from unpoison.brokers.sqs.url import Address, address
from unpoison.errors import ConfigError

LONGEST_NAME = 80
FIFO = ".fifo"
WAYS_OUT = "A source is the name of one queue: letters, digits, '-' and '_', with .fifo at its end for a FIFO queue."


class Names:
    """The names of the queues that belong to one source."""

    def __init__(self, source: str, prefix: str, dlq: str = "") -> None:
        self.source, self.prefix, self.is_fifo = source, prefix, source.endswith(FIFO)
        base, ending = prefix + source.removesuffix(FIFO), FIFO if self.is_fifo else ""
        own = f"{base}-fifo" if self.is_fifo else base
        self.work = prefix + source
        self.dlq = f"{prefix}{dlq}" if dlq else f"{base}-dlq{ending}"
        self.suspects = f"{base}-suspects{ending}"
        self.replays = f"{own}-replays"
        letters = f"{own}-dlq" if not dlq else self.dlq.removesuffix(FIFO) + ("-fifo" if self.is_fifo else "")
        self.history = f"{letters}-history"
        self.lock = f"{letters}-lock{FIFO}"
        self.starts = f"{own}-starts"
        self.later = f"{own}-later"

    def all(self) -> list[str]:
        """Every queue that the source has."""
        own = [self.work, self.dlq, self.suspects, self.replays, self.history, self.lock, self.starts]
        return [*own, self.later] if self.is_fifo else own


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - every broker is asked the same
    """The queues of a source, and what each is for."""
    where = address(url)
    dlq = where.dlqs.get(source, "")
    names = check_name(where, source) if dlq else Names(source, where.prefix)
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


def check_name(where: Address, source: str) -> Names:
    """The names of a source. Raises ConfigError if no queue can be called like this."""
    _check_letters(source, f"Source {source[:80]!r}", WAYS_OUT)
    dlq = where.dlqs.get(source, "")
    if dlq:
        _check_dlq(source, dlq)
    names = Names(source, where.prefix, dlq)
    longest = max((names.lock, names.history), key=len)
    if len(longest) > LONGEST_NAME:
        which = f"Source {source!r} with the DLQ {dlq!r}" if dlq else f"Source {source!r}"
        raise ConfigError(
            f"{which} is too long: its queue {longest!r} would have {len(longest)} characters, and SQS takes {LONGEST_NAME}. "
            f"Shorten it by {len(longest) - LONGEST_NAME}."
        )
    return names


def _check_letters(name: str, what: str, ways_out: str) -> None:
    base = name.removesuffix(FIFO)
    wrong = sorted({each for each in base if not (each.isascii() and (each.isalnum() or each in "-_"))})
    if not base or wrong:
        said = f"has {wrong[0]!r} in it, which" if wrong else "is empty, and that"
        raise ConfigError(f"{what} {said} no name of an SQS queue can have. {ways_out}")


def _check_dlq(source: str, dlq: str) -> None:
    """SQS moves messages of a FIFO queue to FIFO queues only, and others to others."""
    what = f"The DLQ {dlq[:80]!r} of source {source!r}"
    _check_letters(dlq, what, "Use letters, digits, '-' and '_'.")
    if dlq.endswith(FIFO) != source.endswith(FIFO):
        ending = f"end with {FIFO}, as the source does" if source.endswith(FIFO) else f"not end with {FIFO}: the source does not"
        raise ConfigError(f"{what} must {ending}. SQS moves messages between queues of one kind only.")
    if dlq in Names(source, "").all() and dlq != Names(source, "").dlq:
        raise ConfigError(f"{what} cannot have this name: that queue is something else of this source. Choose another name.")
