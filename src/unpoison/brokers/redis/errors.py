"""What the errors of Redis mean for a queue, and for messages that were being published."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from unpoison.errors import BrokerUnavailable, Refusal
from unpoison.port.broker import UNCONFIRMED, Refused
from unpoison.port.broker_url import masked_text

MEANINGS = {
    "OOM": "The server has reached maxmemory and stores nothing more; nothing is lost. Give it more memory, or free some.",
    "MISCONF": "The server cannot write to its disk and stores nothing more; nothing is lost. Check its disk and its log.",
    "READONLY": "This server is a replica, which only reads. Retrying. With sentinels in the URL the master is found.",
    "NOPERM": "This user has no permission for that; nothing is lost. Grant it the rights that docs/redis.md lists.",
    "NOAUTH": "The server requires a password. Put it into the URL: redis://user:password@host:6379/0",
    "WRONGPASS": "The server does not know this user and password. Check the URL.",
    "LOADING": "The server is still loading its data from disk. Retrying.",
    "NOGROUP": "The consumer group was destroyed. The next start creates it, or: XGROUP CREATE <source> <group> 0 MKSTREAM",
    "WRONGTYPE": "A key of unpoison now holds another type. Move it to another name: RENAME <key> <other>",
    "CLUSTERDOWN": "The cluster is down: some of its slots have no master. Retrying.",
}


_REFUSALS = {
    "OOM": Refusal.NO_ROOM,
    "MISCONF": Refusal.NO_ROOM,
    "NOPERM": Refusal.NOT_PERMITTED,
    "NOAUTH": Refusal.NOT_PERMITTED,
    "READONLY": Refusal.NOT_PERMITTED,
}


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Raise errors of the client as BrokerUnavailable, with what they mean and what to do."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise BrokerUnavailable(f"Redis at {shown!r}: {masked_text(str(error))}. {MEANINGS['WRONGPASS']}") from error
    except redis.ResponseError as error:
        raise BrokerUnavailable(f"Redis at {shown!r}: {masked_text(str(error))}. {_meaning(error)}") from error
    except (redis.RedisError, OSError) as error:
        text = masked_text(str(error)).strip().rstrip(".") or type(error).__name__
        raise BrokerUnavailable(
            f"Redis at {shown!r}: {text}. {UNCONFIRMED} Check that the server runs and can be reached."
        ) from error


def refused(shown: str, failed: redis.ResponseError) -> Refused:
    """Why the server refused to store a message."""
    try:
        with explained(shown):
            raise failed
    except BrokerUnavailable as error:
        return Refused(_REFUSALS.get(word(failed), Refusal.OTHER), str(error))


def word(error: redis.ResponseError) -> str:
    """The first word of an error of the server. redis-py removes some of them and uses a class instead."""
    by_class: dict[type[redis.ResponseError], str] = {
        redis.exceptions.NoScriptError: "NOSCRIPT",
        redis.exceptions.NoPermissionError: "NOPERM",
        redis.exceptions.OutOfMemoryError: "OOM",
        redis.ReadOnlyError: "READONLY",
        redis.exceptions.MovedError: "MOVED",
        redis.exceptions.AskError: "ASK",
        redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    }
    return by_class.get(type(error)) or str(error).split(" ")[0]


def _meaning(error: redis.ResponseError) -> str:
    text = str(error)
    if "ACL failure" in text:  # inside a script
        return MEANINGS["NOPERM"]
    return next((MEANINGS[name] for name in (word(error), *text.split()[:8]) if name in MEANINGS), UNCONFIRMED)
