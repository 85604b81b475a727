"""How do messages get on whose time has come, or that a person has sent again?

Whoever consumes the source moves them: a copy is stored where it belongs, then the original is let go. A letter that is sent
again comes from the replays; once it is moved, the history tells what became of the letter. A message whose delay was longer than
SQS lets one wait is sent on to wait again.
"""

from collections.abc import Callable, Sequence

from bezoar.brokers.sqs import copies, envelope, letters, writing
from bezoar.brokers.sqs.envelope import Raw, Seen
from bezoar.brokers.sqs.session import Session
from bezoar.brokers.sqs.taking import Taking
from bezoar.brokers.sqs.topology import Topic
from bezoar.brokers.sqs.writing import Copy
from bezoar.errors import BrokerUnavailable

HELPER_BEAT = 0.5
AT_ONCE = 100


class Mover:
    """Moves what waits in the helper queues of one source."""

    def __init__(self, topic: Topic, session: Session, ring: Callable[[], None]) -> None:
        self._topic, self._session = topic, session
        # Nobody waits at the server there: whoever stops would have to wait for each such request to end.
        beat = max(HELPER_BEAT, session.address.wait)
        self.replays = Taking(topic.replays, session.link, ring, wait=0, beat=beat)
        self.later = None if topic.later is None else Taking(topic.later, session.link, ring, wait=0, beat=HELPER_BEAT)

    @property
    def takings(self) -> list[Taking]:
        return [self.replays] if self.later is None else [self.replays, self.later]

    def move(self) -> bool:
        """Move what has come. True if something was moved."""
        moved = False
        for taking in self.takings:
            if not taking.buffer and taking.is_listening:
                continue
            if not taking.is_listening:
                taking.pull(AT_ONCE)
            found = taking.take(AT_ONCE)
            makers = self._replayed if taking is self.replays else self._due
            self.send_on(taking, found, [copy for raw in found for copy in makers(raw)])
            moved = moved or bool(found)
            taking.listen()
        return moved

    def give_back(self) -> None:
        """Have others move what waits here. How often it was received means nothing in these queues."""
        for taking in self.takings:
            taking.cancel()
            taking.give_back([raw["ReceiptHandle"] for raw in taking.take(len(taking.buffer))])

    def send_on(self, taking: Taking, found: Sequence[Raw], made: Sequence[Copy]) -> None:
        """Have these stored, then let the originals go."""
        handles = [raw["ReceiptHandle"] for raw in found]
        try:
            if refused := self._session.store(made):
                why = next(iter(refused.values()))
                raise BrokerUnavailable(f"SQS refuses {len(refused)} messages that are to be moved: {why.text} ({why.code}).")
            taking.finish(handles)
        finally:
            taking.forget(handles)  # if it failed they come again

    def _replayed(self, raw: Raw) -> list[Copy]:
        """The history first: a letter that is there is not sent a second time."""
        found = letters.read(self._topic.names.source, raw, "replayed", "replayed")
        again = copies.again(self._topic, found.seen, raw, found.letter.replayed(), once=raw["MessageId"])
        return [letters.noted(self._topic.history, found), again]

    def _due(self, raw: Raw) -> list[Copy]:
        seen = envelope.look(raw)
        return [self.sent_on(raw, seen, max(0.0, writing.remaining(raw, seen.envelope)))]

    def sent_on(self, raw: Raw, seen: Seen, wait: float) -> Copy:
        """The message as it is, where it is to be after so long."""
        return copies.again(self._topic, seen, raw, seen.counters, wait, once=raw["MessageId"])
