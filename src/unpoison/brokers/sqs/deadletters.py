"""How are dead letters looked at, sent again and removed in SQS?

A queue cannot be searched, and nothing joins two steps. So every look takes all letters, under a lock, and puts them back. A
letter is sent again by storing it in the replays: from then on it is replayed, whatever happens. Then it is taken from the DLQ,
and a consumer moves it from the replays to the source and tells so in the history. What a person gives up goes to the history
too. Who looks sees all three, and a letter that was dealt with but is still in the DLQ, since somebody was killed, is taken from
there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from unpoison.brokers.sqs import letters
from unpoison.brokers.sqs.broker import SQSBroker
from unpoison.brokers.sqs.letters import Found
from unpoison.brokers.sqs.looking import QueuePass
from unpoison.brokers.sqs.operating import check_time, locked
from unpoison.brokers.sqs.writing import Copy
from unpoison.errors import BrokerUnavailable, UnpoisonError
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.wording import counted
from unpoison.port.broker import Progress
from unpoison.port.copying.dlq_index import Entry, Keep
from unpoison.port.copying.whole_dlq import WholeDLQ, portions

DEAD, REPLAYED, DISCARDED = "dead", "replayed", "discarded"
REQUESTS = 16
"""Under way at once, for one operator."""

_pack, _unpack = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(dict[str, Any]).decode


class SQSDeadLetters(WholeDLQ):
    """The DLQ of one source."""

    def __init__(self, broker: SQSBroker, source: str) -> None:
        broker.session.link.widen(REQUESTS)
        super().__init__(broker, source, partial(_reading, broker, source), partial(_counted, broker, source))


def _counted(broker: SQSBroker, source: str) -> int:
    """About: what SQS says, with those that somebody looks at."""
    ready, _, looked_at = broker.session.counts(broker.session.topic(source).dlq)
    return ready + looked_at


@contextmanager
def _reading(broker: SQSBroker, source: str) -> Iterator["LettersReading"]:
    session = broker.session
    with locked(session, session.topic(source)) as until:
        reading = LettersReading(broker, source, until)
        try:
            yield reading
        except UnpoisonError:
            with suppress(UnpoisonError):  # else they come back by themselves, and whoever looks meanwhile does not see them
                reading.put_back()
            raise
        except BaseException:
            reading.put_back()
            raise
        reading.put_back()


class LettersReading:
    """The letters of a source, taken out of their queues. `until` is when others can see them again."""

    in_order = False

    def __init__(self, broker: SQSBroker, source: str, until: float) -> None:
        self._session, self._source, self._until = broker.session, source, until
        self._topic = broker.session.topic(source)
        self.history = self._topic.history
        self._keep: Keep = _nobody
        states = {self._topic.dlq: (DEAD, DEAD), self._topic.replays: (None, REPLAYED), self._topic.history: (None, DISCARDED)}
        self._read_as = states
        self._passes = {url: QueuePass(self._session, url, until, partial(self._receive, url)) for url in states}
        self.total = self._passes[self._topic.dlq].total

    def _receive(self, url: str, raw: Any) -> None:
        found = self._found(url, raw)
        letter = found.letter
        self._keep(Entry(letter.id, letter.message.id, letter.state, url, raw["MessageId"], found.identity), _pack(raw))

    def _found(self, url: str, raw: Any) -> Found:
        state, otherwise = self._read_as[url]
        return letters.read(self._source, raw, state, otherwise)

    def take_past(self, keep: Keep) -> None:
        self._keep = keep
        for url in (self._topic.replays, self._topic.history):
            taken = self._passes[url]
            if taken.total or taken.held_by_others:  # else SQS says that it is empty, and is believed
                taken.take()

    def take(self, keep: Keep, most: int | None, progress: Progress | None) -> bool:
        """All of them, whatever is asked for: they come in no order."""
        self._keep = keep
        self._passes[self._topic.dlq].take(None, progress)
        check_time(self._until, self._topic)  # else some are missing here
        return True

    def letter(self, entry: Entry, data: bytes) -> DeadLetter:
        return self._found(entry.place, _unpack(data)).letter

    def store(self, chosen: Sequence[Entry], data: Callable[[Entry], bytes], state: str) -> Iterator[Sequence[Entry]]:
        queue = self._topic.replays if state == REPLAYED else self._topic.history
        for part in portions(chosen):
            check_time(self._until, self._topic)
            refused = self._session.store([self._note(queue, entry, data(entry), state) for entry in part])
            yield [entry for number, entry in enumerate(part) if number not in refused]
            if refused:
                why = next(iter(refused.values()))
                raise BrokerUnavailable(
                    f"Taken from {self._topic.names.dlq!r}: {counted(len(part) - len(refused), 'letter')}. Still there: "
                    f"{len(refused)}, since SQS refuses to store them elsewhere: {why.text} ({why.code})."
                )

    def _note(self, queue: str, entry: Entry, data: bytes, state: str) -> Copy:
        found = self._found(entry.place, _unpack(data))
        told = letters.written(found.letter, found.seen, entry.id, state)
        return letters.fitted(queue, found.seen, told, found.raw)

    def let_go(self, entries: Sequence[Entry], *, stored: bool) -> None:
        check_time(self._until, self._topic)
        for url, taken in self._passes.items():
            left = taken.let_go([entry.handle for entry in entries if entry.place == url], tries=2 if stored else 1)
            if left and not stored:
                name = self._topic.names.dlq if url == self._topic.dlq else self._topic.names.history
                raise BrokerUnavailable(
                    f"SQS did not delete {len(left)} of the messages in {name!r}; they are still there. Try again."
                )

    def put_back(self) -> None:
        self._keep = _nobody
        for taken in self._passes.values():
            taken.put_back()


def _nobody(_: Entry, __: bytes) -> None:
    raise AssertionError("nothing was asked for")
