"""When is the next message of a source due, and who holds some?"""

from collections.abc import Sequence

from unpoison.brokers.redis.connection import Link
from unpoison.brokers.redis.keys import ALONE, HELD, LATER, WAITING
from unpoison.brokers.redis.takeover import shown
from unpoison.port.broker import Waits


def waits_of(link: Link, keys: Sequence[str], group: str, but_owner: str) -> Waits:
    source = keys[0]
    first = [("ZRANGE", keys[each], 0, 0, "WITHSCORES") for each in (WAITING, ALONE, LATER)]
    *soonest, held, pending, moment = link.try_all(source, *first, ("HVALS", keys[HELD]), ("XPENDING", source, group), ("TIME",))
    now = float(moment[0])
    dues = [float(found[1]) / 1000 for found in soonest if not isinstance(found, Exception) and found]
    names = {name.removeprefix(b"!") for name in held} if not isinstance(held, Exception) else set()
    if not isinstance(pending, Exception):  # a list has no group
        names |= {name for name, _ in pending[3] or ()}
    holders = tuple(sorted(shown(name) for name in names - {but_owner.encode()}))
    return Waits(min((due for due in dues if due > now), default=None), holders)
