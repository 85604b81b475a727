"""What has this consumer really got?

An answer can be lost on its way: then the server has handed out messages that nobody here knows of, and since this consumer is
alive nobody would ever take them over. So it notes what has reached it, and after a fetch that failed asks for the rest.
"""

from collections.abc import Sequence

from unpoison.model.message import Delivery


class Hand:
    """What one owner has got of one source."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_sure = True
        """False from the moment something is asked for until it has come: whether it was handed out is not known then."""
        self.last = b"0-0"
        """The newest entry that has come. A group is given entries in their order, so what was missed lies behind it."""
        self.waiting: set[bytes] = set()
        """The numbers of those that waited and are here now."""
        self.stock: list[Delivery] = []
        """What was read ahead and nobody has asked for yet."""
        self.ahead = 0
        """How many the server was asked for ahead, and its answer was not looked at yet."""

    def got(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in reversed(deliveries):
            if not delivery.receipt.is_waiting:
                self.last = max(self.last, delivery.receipt.no, key=_sortable)
                break
        self.waiting.update(delivery.receipt.no for delivery in deliveries if delivery.receipt.is_waiting)
        self.is_sure = True


def _sortable(no: bytes) -> tuple[int, int]:
    first, _, second = no.partition(b"-")
    return int(first), int(second)
