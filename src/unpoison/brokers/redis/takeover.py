"""What happens to the messages of a consumer that vanished?

They come back as *returned*: whether they had been started is not known. That is counted, and the counting is part of the step.
"""

import logging
from collections.abc import Sequence

from unpoison.brokers.redis import presence, scripts
from unpoison.brokers.redis.connection import Link

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
                "%d messages of source %r that %s held were trimmed from the stream while they were being handled: they are "
                "lost unless it had finished them. Remove MAXLEN from what writes to the stream. (%d others came back.)",
                trimmed, source, name.decode(errors="backslashreplace"), taken,
            )  # fmt: skip
    return came_back
