"""Moves on what waited in helper queues: messages whose time has come, and those that a person has sent again."""

from collections.abc import Callable, Mapping, Sequence

from unpoison.brokers.sqs import copies, envelope
from unpoison.brokers.sqs.copies import Found
from unpoison.brokers.sqs.envelope import Raw, Seen
from unpoison.brokers.sqs.subscription import Subscription
from unpoison.brokers.sqs.topology import Client, Topic
from unpoison.brokers.sqs.writing import Copy, No
from unpoison.errors import BrokerUnavailable

HELPER_BEAT = 0.5
AT_ONCE = 100


class Mover:
    """Each consumer of a source does so: a copy is stored where it belongs, then the original is let go. A letter that is sent
    again comes from the replays; once it is moved, the history tells what became of the letter. A message whose delay was longer
    than SQS lets one wait is sent on to wait again.
    """

    def __init__(self, topic: Topic, client: Client, ring: Callable[[], None]) -> None:
        self._topic, self._client = topic, client
        # No request waits at the server there: a stop would have to wait for each such request to end.
        beat = max(HELPER_BEAT, client.address.wait)
        self.replays = Subscription(topic.replays, client.connection, ring, wait=0, beat=beat)
        self.later = None if topic.later is None else Subscription(topic.later, client.connection, ring, wait=0, beat=HELPER_BEAT)

    @property
    def subscriptions(self) -> list[Subscription]:
        return [self.replays] if self.later is None else [self.replays, self.later]

    def move(self, *, listens: bool = True) -> bool:
        """Move what has come. True if something was moved."""
        moved = False
        for subscription in self.subscriptions:
            if not subscription.buffer and subscription.is_listening:
                continue
            if not subscription.is_listening:
                subscription.pull(AT_ONCE)
            found = subscription.take(AT_ONCE)
            if subscription is self.replays:
                self._send_again(found)
            else:
                self.send_on(subscription, found, [self._due(raw) for raw in found])
            moved = moved or bool(found)
            if listens:
                subscription.listen()
        return moved

    def give_back(self) -> None:
        """Let others move what waits here. How often it was received means nothing in these queues."""
        for subscription in self.subscriptions:
            subscription.cancel()
            handles = [raw["ReceiptHandle"] for raw in subscription.take(len(subscription.buffer))]
            try:
                subscription.give_back(handles)
            finally:
                subscription.leases.forget(handles)  # if it failed SQS takes them back by itself

    def send_on(self, subscription: Subscription, found: Sequence[Raw], made: Sequence[Copy]) -> None:
        """Store a copy of each, then let the originals go. One that is refused does not hold up the others."""
        handles = [raw["ReceiptHandle"] for raw in found]
        try:
            refused = self._client.store(made)
            subscription.delete([handle for number, handle in enumerate(handles) if number not in refused])
        finally:
            subscription.leases.forget(handles)  # if it failed they come again
        _tell(refused, len(found))

    def _send_again(self, found: Sequence[Raw]) -> None:
        """The history first: where that is refused the letter stays, and is not sent a second time when it comes again."""
        read = [copies.read(self._topic.names.source, raw, "replayed", "replayed") for raw in found]
        try:
            refused = self._client.store([copies.noted(self._topic.history, each) for each in read])
            noted = [each for number, each in enumerate(read) if number not in refused]
            self.send_on(self.replays, [each.raw for each in noted], [self._again(each) for each in noted])
        finally:
            self.replays.leases.forget([raw["ReceiptHandle"] for raw in found])
        _tell(refused, len(found))

    def _again(self, found: Found) -> Copy:
        return copies.sent_again(self._topic, found)

    def _due(self, raw: Raw) -> Copy:
        seen = envelope.look_safely(raw)
        return self.sent_on(raw, seen, max(0.0, copies.remaining(raw, seen.envelope)))

    def sent_on(self, raw: Raw, seen: Seen, wait: float) -> Copy:
        """The message as it is, where it is to be after so long."""
        return copies.again(self._topic, seen, raw, seen.counters, wait, once=raw["MessageId"])


def _tell(refused: Mapping[int, No], count: int) -> None:
    if refused:
        why = next(iter(refused.values()))
        raise BrokerUnavailable(
            f"SQS refuses {len(refused)} of {count} messages that are to be moved: {why.text} ({why.code}). They stay where they "
            f"are, and are tried again."
        )
