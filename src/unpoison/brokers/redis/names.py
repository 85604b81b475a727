"""Names of keys and channels.

The stream (or list) has the name of the source, and `dlq:<source>` holds its dead letters unless
another name is given for that. All other keys begin with `unpoison:`,
the source and, if they belong to one group, the group. Every key contains the name of the source, so a hash tag in it
(`{orders}`) puts all of them into one slot of a cluster.
"""

from dataclasses import replace

from redis.crc import key_slot

from unpoison.brokers.redis.url import Address, address
from unpoison.errors import ConfigError

SOURCES = "unpoison:sources"
"""The names of all sources that were ever opened here, for people and for the doctor."""


SOURCE, WAITING, ALONE, HELD, MESSAGES, COUNTERS, RETURNED, OWNERS, NUMBERS, LATER, LATER_MESSAGES = range(11)
DLQ, HISTORY, REPLAYED, DISCARDED = range(11, 15)
"""The index of each key in `keys_of`. lua/prelude.lua uses the same order."""


def keys_of(where: Address, source: str, group: str = "") -> tuple[str, ...]:
    """Every key of a source, for one group. Those of its dead letters come last."""
    names = ("waiting", "alone", "held", "messages", "counters", "returned", "owners", "numbers")
    own = [f"unpoison:{source}:{group or where.group}:{name}" for name in names]
    later = [f"unpoison:{source}:later:{name}" for name in ("due", "messages")]
    letters = [f"unpoison:{source}:dlq:{name}" for name in ("history", "replayed", "discarded")]
    return (source, *own, *later, dlq_of(where, source), *letters)


def dlq_of(where: Address, source: str) -> str:
    return where.dlqs.get(source, f"dlq:{source}")


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - one signature for all brokers
    """The keys of a source, and what each is for."""
    where = address(url)
    check_dlq(where, source)
    told = {source: "its messages", dlq_of(where, source): "its dead letters"}
    return dict.fromkeys(keys_of(where, source), "its own bookkeeping") | told


def check_dlq(where: Address, source: str) -> None:
    """A key may be called anything, but it is one thing only, and in a cluster it is where the source is."""
    dlq = where.dlqs.get(source)
    if dlq is None:
        return
    if dlq in keys_of(replace(where, dlqs={}), source)[:DLQ] or dlq.startswith("unpoison:"):
        raise ConfigError(
            f"The DLQ of source {source!r} cannot be {dlq!r}: that key is something else of unpoison's. Choose another name."
        )
    if "{" in source and key_slot(dlq.encode()) != key_slot(source.encode()):
        raise ConfigError(
            f"The DLQ {dlq!r} of source {source!r} must have the same hash tag as the source: in a cluster they would be on "
            f"different nodes, and no step over several of them is atomic."
        )


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
