"""What happens to the messages of a consumer that vanished?

They come back as *returned*: whether they had been started is not known. That is counted, and the counting is part of the step.
"""

import logging
from collections.abc import Sequence

from unpoison.brokers.redis import presence, scripts
from unpoison.brokers.redis.connection import Link
from unpoison.plural import counted

log = logging.getLogger("unpoison")


def take_over(link: Link, keys: Sequence[str], me: presence.Presence, from_owner: str = "") -> int:
    """Give back what vanished consumers held, or this one, whatever it says. Returns how many messages came back."""
    source, silence = keys[0], int(presence.LEASE * 1000)
    command = scripts.INHERIT(keys, link.finder.address.group, me.name, me.run, silence, from_owner)
    came_back = 0
    for name, _, taken, trimmed in link.ask(source, command)[0]:
        came_back += taken
        if trimmed:
            log.error(
                "Source %r: %s that %s held had been trimmed from the stream while it was being handled: lost, unless it had "
                "been finished. Remove MAXLEN from what writes to the stream. (Came back: %s.)",
                source, counted(trimmed, "message"), name.decode(errors="backslashreplace"), counted(taken, "other message"),
            )  # fmt: skip
    return came_back
