"""Names of keys and channels.

The stream (or list) has the name of the source, and `dlq:<source>` holds its dead letters. All other keys begin with `unpoison:`,
the source and, if they belong to one group, the group. Every key contains the name of the source, so a hash tag in it
(`{orders}`) puts all of them into one slot of a cluster.
"""

from unpoison.brokers.redis.url import address
from unpoison.errors import ConfigError

SOURCES = "unpoison:sources"
"""The names of all sources that were ever opened here, for people and for the doctor."""


SOURCE, WAITING, ALONE, HELD, MESSAGES, COUNTERS, RETURNED, OWNERS, NUMBERS, LATER, LATER_MESSAGES = range(11)
DLQ, HISTORY, REPLAYED, DISCARDED = range(11, 15)
"""The index of each key in `keys_of`. lua/prelude.lua uses the same order."""


def keys_of(source: str, group: str) -> tuple[str, ...]:
    """Every key of a source, for one group. Those of its dead letters come last."""
    names = ("waiting", "alone", "held", "messages", "counters", "returned", "owners", "numbers")
    own = [f"unpoison:{source}:{group}:{name}" for name in names]
    later = [f"unpoison:{source}:later:{name}" for name in ("due", "messages")]
    letters = [f"unpoison:{source}:dlq:{name}" for name in ("history", "replayed", "discarded")]
    return (source, *own, *later, dlq_of(source), *letters)


def dlq_of(source: str) -> str:
    return f"dlq:{source}"


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - one signature for all brokers
    """The keys of a source, and what each is for."""
    names = keys_of(source, address(url).group)
    return dict.fromkeys(names, "its own bookkeeping") | {source: "its messages", dlq_of(source): "its dead letters"}


def owner_channel(owner: str) -> str:
    """While a client subscribes to it, the owner is alive."""
    return f"unpoison:owner:{owner}"


def check_tag(source: str, shown: str) -> None:
    """In a cluster all keys of a source must be in one slot."""
    opened = source.find("{")
    closed = source.find("}", opened + 1)
    if opened < 0 or closed <= opened + 1:
        raise ConfigError(
            f"{shown!r} is a cluster, and source {source!r} has no hash tag: its keys would be on different nodes, and "
            f"no step over several of them is atomic. Put the tag into its name: '{{{source}}}'"
        )
