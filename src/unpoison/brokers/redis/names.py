"""Which keys does a source have?

The stream (or list) is called as the source is, the dead letters are in `dlq:<source>`. Everything else begins with `unpoison:`,
the source and, where it belongs to one group, the group. All of them contain the name of the source, so that a hash tag in it
(`{orders}`) puts all of them into one slot of a cluster.
"""

from unpoison.brokers.redis.url import address
from unpoison.errors import ConfigError

SOURCES = "unpoison:sources"
"""The names of all sources that were ever opened here; only to be looked at by people and by the doctor."""


SOURCE, WAITING, ALONE, HELD, MESSAGES, COUNTERS, RETURNED, OWNERS, NUMBERS, LATER, LATER_MESSAGES = range(11)
DLQ, HISTORY, REPLAYED, DISCARDED = range(11, 15)
"""Where in `keys_of` each of them is. lua/prelude.lua takes them in the same order."""


def keys_of(source: str, group: str) -> tuple[str, ...]:
    """Every key of a source, for one group. Those of its dead letters come last."""
    names = ("waiting", "alone", "held", "messages", "counters", "returned", "owners", "numbers")
    own = [f"unpoison:{source}:{group}:{name}" for name in names]
    later = [f"unpoison:{source}:later:{name}" for name in ("due", "messages")]
    letters = [f"unpoison:{source}:dlq:{name}" for name in ("history", "replayed", "discarded")]
    return (source, *own, *later, dlq_of(source), *letters)


def dlq_of(source: str) -> str:
    return f"dlq:{source}"


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - every broker is asked the same
    """The keys of a source, and what each is for."""
    names = keys_of(source, address(url).group)
    return dict.fromkeys(names, "its own bookkeeping") | {source: "its messages", dlq_of(source): "its dead letters"}


def owner_channel(owner: str) -> str:
    """Who is subscribed to it is alive."""
    return f"unpoison:owner:{owner}"


def check_tag(source: str, shown: str) -> None:
    """In a cluster keys of one source must be in one slot."""
    opened = source.find("{")
    closed = source.find("}", opened + 1)
    if opened < 0 or closed <= opened + 1:
        raise ConfigError(
            f"{shown!r} is a cluster, and source {source!r} has no hash tag: its keys would be on different nodes, and no step "
            f"over several of them could be atomic. Write the tag in its name: '{{{source}}}'"
        )
