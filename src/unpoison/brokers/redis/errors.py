"""What do the errors of Redis mean for a queue, and what is to be done?"""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from unpoison.errors import BrokerUnavailable
from unpoison.port.broker_url import masked_text

_CONFIRMED = "Nothing that was not confirmed has been taken for done."
MEANINGS = {
    "OOM": "The server is at its maxmemory and stores nothing more; nothing is lost. Give it more memory, or free some.",
    "MISCONF": "The server cannot write its file to disk and stores nothing more; nothing is lost. Look at its disk and log.",
    "READONLY": "This server is a replica, which only reads. It is tried again; sentinels would tell where the master is.",
    "NOPERM": "This user has no right to that: nothing is lost. Grant it the rights that docs/redis.md lists.",
    "NOAUTH": "The server wants a password. Put it into the URL: redis://user:password@host:6379/0",
    "WRONGPASS": "The server knows no such user and password. Check the URL.",
    "LOADING": "The server is still reading its file from disk. It is tried again.",
    "NOGROUP": "The consumer group was destroyed. The next start makes it anew, or: XGROUP CREATE <source> <group> 0 MKSTREAM",
    "WRONGTYPE": "A key that unpoison uses holds something else by now. Move that to another name: RENAME <key> <other>",
    "CLUSTERDOWN": "The cluster serves no requests now: a part of its slots has no master. It is tried again.",
}


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Turn Redis' words into what they mean for a queue, and what to do."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise BrokerUnavailable(f"Redis at {shown!r}: {masked_text(str(error))}. {MEANINGS['WRONGPASS']}") from error
    except redis.ResponseError as error:
        raise BrokerUnavailable(f"Redis at {shown!r}: {masked_text(str(error))}. {_meaning(error)}") from error
    except (redis.RedisError, OSError) as error:
        text = masked_text(str(error)).strip().rstrip(".") or type(error).__name__
        raise BrokerUnavailable(
            f"Redis at {shown!r}: {text}. {_CONFIRMED} Check that the server runs and can be reached."
        ) from error


def word(error: redis.ResponseError) -> str:
    """The word that an error of the server begins with. redis-py takes some of them away and says them as a class."""
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
    if "ACL failure" in text:  # a script was refused something
        return MEANINGS["NOPERM"]
    return next((MEANINGS[name] for name in (word(error), *text.split()[:8]) if name in MEANINGS), _CONFIRMED)
