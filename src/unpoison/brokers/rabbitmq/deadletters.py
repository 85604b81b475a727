"""How are dead letters looked at, sent again and removed in RabbitMQ?

A queue cannot be searched, so every look takes all letters and puts them back by ending the channel: that keeps their order
on every version. A letter that was dealt with moves to `<queue>.dlq.history`. One that is sent again is stored once for both
places, the source and the history, and then taken from the DLQ: a crash in between is seen there, and it is not sent twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from unpoison.brokers.rabbitmq import envelope, letters
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.consuming import Subscription
from unpoison.brokers.rabbitmq.letters import Found
from unpoison.brokers.rabbitmq.moving import why
from unpoison.brokers.rabbitmq.operating import locked
from unpoison.brokers.rabbitmq.topology import dlq_of, history_of, lane_of
from unpoison.brokers.rabbitmq.writing import Copy
from unpoison.deadletters.record import DeadLetter
from unpoison.errors import BrokerUnavailable


class RabbitMQDeadLetters:
    """The DLQ of one source."""

    def __init__(self, broker: RabbitMQBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._page: list[DeadLetter] | None = None

    def count(self, state: str = "dead") -> int:
        return sum(letter.state == state for letter in self._look())

    def freeze(self) -> str:
        self._page = self._look()
        return self._page[-1].id if self._page else f"{self._source}-"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        """The pages that belong to one `freeze` come from one look."""
        letters_ = self._page if (after or until) and self._page is not None else self._look()
        found = [letter for letter in letters_ if state in (None, letter.state)]
        if only is not None:
            return [letter for letter in found if letter.id == only]
        found = [letter for letter in found if letter.id > after and (not until or letter.id <= until)]
        return found[:limit]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        self.broker.links.topology().renew(self._source)  # a deleted source would swallow what the history keeps as sent
        return self._move(letter_ids, "replayed", lambda found: [self._again(found)])

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        if state == "dead":
            return self._move(letter_ids, keep_as, lambda found: [self._note(found, keep_as)] if keep_as else [])
        with self._taken(history_of(self._source)) as (found, history):
            chosen = [each for each in found if each.letter.id in set(letter_ids) and each.letter.state == state]
            history.finish([each.arrived.tag for each in chosen])
        return self._changed([each.letter.id for each in chosen], None)

    def _move(self, letter_ids: Sequence[str], state: str | None, store: Callable[[Found], list[Copy]]) -> Sequence[str]:
        """Take these from the DLQ once what is to be kept of them elsewhere is stored."""
        wanted = set(letter_ids)
        with self._taken(dlq_of(self._source)) as (found, dlq):
            noted = {letter.id for letter in self._history()}
            chosen = {each.letter.id: each for each in found if each.letter.id in wanted and each.letter.id not in noted}
            copies = [copy for each in chosen.values() for copy in store(each)]
            if copies:
                batch = self.broker.links.store(copies)
                if not all(batch.stored(number) for number in range(len(copies))):
                    raise BrokerUnavailable(f"Nothing was taken from {dlq_of(self._source)!r}. {why(batch)}")
            dlq.finish([each.arrived.tag for each in found if each.letter.id in chosen or each.letter.id in noted])
        return self._changed([id_ for id_ in letter_ids if id_ in chosen], state)

    def _again(self, found: Found) -> Copy:
        counters = found.letter.replayed()
        queue = lane_of(self._source) if counters.alone else self._source
        noted = [envelope.also_to(history_of(self._source)), *letters.told(found.letter, found.letter.id, "replayed")]
        return Copy("", queue, envelope.copied(found.seen, found.like, counters, extra=noted), found.arrived.body)

    def _note(self, found: Found, state: str) -> Copy:
        data = letters.written(found.letter, found.seen, found.like, found.letter.id, state)
        return Copy("", history_of(self._source), data, found.arrived.body)

    def _changed(self, letter_ids: Sequence[str], state: str | None) -> Sequence[str]:
        """The pages of the last look, as they are now."""
        if self._page is not None:
            changed = set(letter_ids)
            self._page = [
                letter if letter.id not in changed else msgspec.structs.replace(letter, state=state)
                for letter in self._page
                if letter.id not in changed or state is not None
            ]
        return letter_ids

    def _look(self) -> list[DeadLetter]:
        """Every letter, in the order they came, with what became of it."""
        with self._taken(dlq_of(self._source)) as (found, _):
            dealt_with = self._history()
        everything = {each.letter.id: each.letter for each in found} | {letter.id: letter for letter in dealt_with}
        return sorted(everything.values(), key=lambda letter: letter.id)

    def _history(self) -> list[DeadLetter]:
        with self._opened(history_of(self._source)) as (found, _):
            return list({each.letter.id: each.letter for each in found}.values())

    @contextmanager
    def _taken(self, queue: str) -> Iterator[tuple[list[Found], Subscription]]:
        """What is in this queue, under the lock of the DLQ. What was not let go when the block ends is put back."""
        with locked(self.broker.links.topology(), dlq_of(self._source)), self._opened(queue) as opened:
            yield opened

    @contextmanager
    def _opened(self, queue: str) -> Iterator[tuple[list[Found], Subscription]]:
        subscription = Subscription(self.broker.links.topology().link, queue, lambda: None)
        try:
            states = ("dead",) if queue == dlq_of(self._source) else ("replayed", "discarded")
            found = [letters.read(self._source, arrived, states) for arrived in subscription.take_all()]
            yield _told_apart(found), subscription
        finally:
            subscription.close()


def _told_apart(found: Sequence[Found]) -> list[Found]:
    """Letters that a crash left twice get one id, equal ones without a name different ones."""
    first: dict[object, Found] = {}
    counted: Counter[str] = Counter()
    told: list[Found] = []
    for each in found:
        id_ = each.letter.id
        if each.seen.stamp is None:
            counted[id_] += 1
            id_ = id_ if counted[id_] == 1 else f"{id_}-{counted[id_]}"
        else:
            id_ = first.setdefault(each.identity, each).letter.id
        told.append(msgspec.structs.replace(each, letter=msgspec.structs.replace(each.letter, id=id_)))
    return told
