"""How do others know that somebody holds messages of a source, when the server does not tell?

Whoever holds some, or has some waiting in its buffer, is a consumer of the empty queue `<queue>.busy`; the server tells
everybody how many consumers a queue has, and forgets those whose connection ends. So a run that is to end when nothing is
left does not end while another consumer is at work, on whatever host.
"""

from unpoison.brokers.rabbitmq.connection import Link
from unpoison.brokers.rabbitmq.wire import cancel_frame, consume_frame


class Presence:
    """The mark of one connection on one source. Only the connection's thread changes it."""

    def __init__(self, link: Link, queue: str) -> None:
        self._link, self._queue = link, queue
        self._channel = link.channel()
        self.is_marked = False

    def mark(self) -> None:
        """Seen as busy from now on."""
        if not self.is_marked:
            self.is_marked = True
            self._channel.send(consume_frame(self._channel.number, self._queue, "busy"))

    def mark_soon(self) -> None:
        """The same, for whoever is not in the connection's thread."""
        self._link.post(self.mark)

    def unmark(self) -> None:
        """Seen as idle from now on."""
        if self.is_marked:
            self.is_marked = False
            self._channel.send(cancel_frame(self._channel.number, "busy"))
