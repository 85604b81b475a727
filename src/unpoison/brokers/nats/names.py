"""The names of streams, consumers and subjects in NATS.

A source is a subject. For the source `orders` and the group `unpoison`:

    stream orders                        the messages, unless a stream that takes this subject was there before
    stream orders_unpoison_RETRIES         unpoison.again.unpoison.orders       to be started again: retries, releases
                                         unpoison.suspects.unpoison.orders    to be run alone
                                         unpoison.later.unpoison.orders.*     waiting for their time
    stream orders_DLQ                    unpoison.dead.orders               dead letters
                                         unpoison.replay.*.orders.*         letters sent again, by group; they stay as history
                                         unpoison.discarded.orders.*        letters given up by a person
                                         unpoison.claim.orders.*            what an operator is about to do with a letter
                                         unpoison.starts.*.orders.*         who started a message that must run alone

A DLQ of another name, such as the stream LOST, has subjects of its own: unpoison.dead._dlq.LOST. So the usual one may be there
too.

The kind stands first and the source behind it: so subjects of `orders` and of `orders.eu` never fit the same pattern.
"""

from unpoison.brokers.nats.url import FORBIDDEN, Address, address
from unpoison.errors import ConfigError

LONGEST_NAME = 128
NAMED = "_dlq."
"""Stands before the name of a DLQ that is not the usual one, where else the source stands."""
WAYS_OUT = "A source is one subject, as in 'orders' or 'orders.eu'; for several make several consumers."


class Names:
    """The names that belong to one source and group."""

    def __init__(self, source: str, group: str, dlq: str = "") -> None:
        self.source, self.group, self.given_dlq = source, group, dlq
        self.base = source.replace(".", "_")
        """The source as part of the name of a stream, which can hold no dots."""
        self.retries, self.dlq = f"{self.base}_{group}_RETRIES", dlq or f"{self.base}_DLQ"
        self.again = f"unpoison.again.{group}.{source}"
        self.suspects = f"unpoison.suspects.{group}.{source}"
        self.later = f"unpoison.later.{group}.{source}"
        letters = f"{NAMED}{dlq}" if dlq else source
        self.dead = f"unpoison.dead.{letters}"
        self.claim = f"unpoison.claim.{letters}"
        self.discarded = f"unpoison.discarded.{letters}"
        self.replay = f"unpoison.replay.{group}.{letters}"
        self.replays = f"unpoison.replay.*.{letters}"
        """Letters sent again by any group."""
        self.starts = f"unpoison.starts.{group}.{letters}"
        self.all_starts = f"unpoison.starts.*.{letters}"
        self.holding = f"unpoison.holding.{group}.{source}"
        """A consumer that holds a message that must run alone answers here. Nothing is stored there."""

    def letter_id(self, number: int | str) -> str:
        """Letters of a source may be in two DLQs, one after the other, and each counts from 1."""
        return f"{self.given_dlq or self.source}-{number}"

    def of_group(self, group: str) -> "Names":
        return Names(self.source, group, self.given_dlq)


def names_of(where: Address, source: str) -> Names:
    """Checked."""
    check_name(source)
    dlq = where.dlqs.get(source, "")
    names = Names(source, where.group, dlq)
    is_name = not FORBIDDEN & set(dlq) and dlq.isprintable() and len(dlq.encode()) <= LONGEST_NAME
    if dlq and (not is_name or dlq in (names.base, names.retries)):
        raise ConfigError(
            f"The DLQ of source {source!r} cannot be {dlq[:80]!r}: it is the name of a stream of its own, with 1 to "
            f"{LONGEST_NAME} bytes and no space, '.', '*', '>', '/' or backslash in it, such as 'LOST'."
        )
    return names


def check_name(source: str) -> None:
    tokens = source.split(".")
    if not all(tokens) or len(source.encode()) > LONGEST_NAME or not source.isprintable():
        raise ConfigError(
            f"Source {source[:80]!r} cannot be a NATS subject: it has 1 to {LONGEST_NAME} bytes and no empty part between its "
            f"dots. {WAYS_OUT}"
        )
    wrong = sorted((FORBIDDEN - {"."}) & set(source))
    if wrong:
        raise ConfigError(f"Source {source!r} has {wrong[0]!r} in it, which no name of a stream can have. {WAYS_OUT}")
    if tokens[0] in ("unpoison", "_INBOX") or source.startswith("$"):
        raise ConfigError(f"Source {source!r} begins with {tokens[0]!r}, which is used for other things. Choose another name.")


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - every broker is asked the same
    """The streams of a source, and what each is for. A stream can have no dots in its name."""
    where = address(url)
    names = names_of(where, source) if source in where.dlqs else Names(source, where.group)
    return {names.base: "its messages", names.retries: "its retries", names.dlq: "its dead letters"}


def fits(subject: str, pattern: str) -> bool:
    """Whether a stream or consumer with this pattern takes the subject."""
    words, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        words, wanted = words[: len(wanted) - 1], wanted[:-1]
    return len(words) == len(wanted) and all(one in ("*", word) for word, one in zip(words, wanted, strict=True))
