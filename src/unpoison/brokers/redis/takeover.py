"""What happens to the messages of a consumer that vanished?

They come back as *returned*: whether they had been started is not known. That is counted, and the counting is part of the step.
"""

import logging
from collections.abc import Sequence

from unpoison.brokers.redis import presence, scripts
from unpoison.brokers.redis.connection import Link
from unpoison.model.wording import counted
from unpoison.port.takeovers import tell

log = logging.getLogger("unpoison")


def take_over(link: Link, keys: Sequence[str], me: presence.Presence, from_owner: str = "") -> int:
    """Give back what vanished consumers held, or this one, whatever it says. Returns how many messages came back."""
    source, silence = keys[0], int(presence.LEASE * 1000)
    command = scripts.INHERIT(keys, link.finder.address.group, me.name, me.run, silence, from_owner)
    came_back = 0
    for name, said, taken, trimmed in link.ask(source, command)[0]:
        came_back += taken
        if taken and not from_owner:  # else it is this consumer itself that has lost them
            tell(source, taken, shown(name), _since(said))
        if trimmed:
            log.error(
                "Source %r: %s that %s held had been trimmed from the stream while it was being handled: lost, unless it had "
                "been finished. Remove MAXLEN from what writes to the stream. (Came back: %s.)",
                source, counted(trimmed, "message"), name.decode(errors="backslashreplace"), counted(taken, "other message"),
                extra={"event": "trimmed", "source": source},
            )  # fmt: skip
    return came_back


def shown(name: bytes) -> str:
    """An owner as people know it: host:pid. A consumer that is none of ours has the name that it gave itself."""
    host, pid, own = (["", "", *name.decode(errors="backslashreplace").rsplit("-", 2)])[-3:]
    return f"{host}:{pid}" if host and pid.isdigit() else f"{host}-{pid}-{own}".lstrip("-")


def _since(said: bytes) -> float | None:
    """Since when an owner had been there, from what it said last (lua/appear.lua). Others say nothing."""
    words = said.split()
    return float(words[5]) if len(words) == 6 and words[5].isdigit() else None
