"""How are dead letters looked at, sent again and removed in SQS?

A queue cannot be searched, and nothing joins two steps. So every look takes all letters, under a lock, and puts them back. A
letter is sent again by storing it in the replays: from then on it is replayed, whatever happens. Then it is taken from the DLQ,
and a consumer moves it from the replays to the source and tells so in the history. What a person gives up goes to the history
too. Who looks sees all three, and a letter that was dealt with but is still in the DLQ, since somebody was killed, is taken from
there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from unpoison.brokers.sqs import letters
from unpoison.brokers.sqs.broker import SQSBroker
from unpoison.brokers.sqs.client import in_tens
from unpoison.brokers.sqs.envelope import Raw
from unpoison.brokers.sqs.letters import Found
from unpoison.brokers.sqs.looking import put_back, take_all
from unpoison.brokers.sqs.operating import check_time, locked
from unpoison.brokers.sqs.topology import Topic
from unpoison.brokers.sqs.writing import Copy, No
from unpoison.deadletters.record import DeadLetter
from unpoison.errors import BrokerUnavailable

DEAD, REPLAYED, DISCARDED = "dead", "replayed", "discarded"


class Table(msgspec.Struct):
    """The letters of a source, taken out of their queues for a moment."""

    until: float
    dead: list[Found]
    replays: list[Found]
    history: list[Found]

    @property
    def dealt_with(self) -> dict[str, DeadLetter]:
        return {each.letter.id: each.letter for each in (*self.replays, *self.history)}


class SQSDeadLetters:
    """The DLQ of one source."""

    def __init__(self, broker: SQSBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._page: list[DeadLetter] | None = None

    def count(self, state: str = DEAD) -> int:
        """How many wait is what SQS says, about; other states have to be looked for."""
        if state == DEAD:
            ready, _, looked_at = self.broker.session.counts(self._topic.dlq)
            return ready + looked_at
        return sum(letter.state == state for letter in self._look())

    def freeze(self) -> str:
        self._page = self._look()
        return self._page[-1].id if self._page else f"{self._source}-"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        """The pages that belong to one `freeze` come from one look."""
        known = self._page if (after or until) and self._page is not None else self._look()
        found = [letter for letter in known if state in (None, letter.state)]
        if only is not None:
            return [letter for letter in found if letter.id == only]
        found = [letter for letter in found if letter.id > after and (not until or letter.id <= until)]
        return found[:limit]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        return self._deal(letter_ids, REPLAYED, lambda found: [self._note(self._topic.replays, found, REPLAYED)])

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        if state == DEAD:
            return self._deal(
                letter_ids, keep_as, lambda found: [self._note(self._topic.history, found, keep_as)] if keep_as else []
            )
        with self._taken() as table:
            wanted = set(letter_ids)
            chosen = [each for each in table.history if each.letter.id in wanted and each.letter.state == state]
            check_time(table.until, self._topic)
            self._expect_none(self._delete(self._topic.history, chosen), self._topic.names.history)
            waiting = {each.letter.id for each in table.replays}
        removed = {each.letter.id for each in chosen} - waiting
        return self._changed([id_ for id_ in letter_ids if id_ in removed], None)

    @property
    def _topic(self) -> Topic:
        return self.broker.session.topic(self._source)

    def _deal(self, letter_ids: Sequence[str], state: str | None, store: Callable[[Found], list[Copy]]) -> Sequence[str]:
        """Take these from the DLQ once what is to be kept of them elsewhere is stored."""
        wanted = set(letter_ids)
        with self._taken() as table:
            over = table.dealt_with
            chosen = {each.letter.id: each for each in table.dead if each.letter.id in wanted and each.letter.id not in over}
            check_time(table.until, self._topic)
            refused = self.broker.session.store([copy for each in chosen.values() for copy in store(each)])
            for id_ in [id_ for number, id_ in enumerate(chosen) if number in refused]:
                del chosen[id_]
            done = [each for each in table.dead if each.letter.id in chosen or each.letter.id in over]
            left = self._delete(self._topic.dlq, done)
            if state is None:
                self._expect_none(left, self._topic.names.dlq)
        if left:
            self._look()
        changed = self._changed([id_ for id_ in letter_ids if id_ in chosen], state)
        if refused:
            raise self._refused(len(chosen), refused)
        return changed

    def _refused(self, done: int, refused: Mapping[int, No]) -> BrokerUnavailable:
        why = next(iter(refused.values()))
        return BrokerUnavailable(
            f"{done} letters were taken from {self._topic.names.dlq!r}, and {len(refused)} are still there, since SQS refuses to "
            f"store them elsewhere: {why.text} ({why.code})."
        )

    def _note(self, queue: str, found: Found, state: str) -> Copy:
        told = letters.written(found.letter, found.seen, found.letter.id, state)
        return letters.fitted(queue, found.seen, told, found.raw)

    def _delete(self, queue: str, found: Sequence[Found]) -> list[Found]:
        """Returns those that are not deleted: SQS did not want to, or it took so long that others may have them."""
        answers = self.broker.session.link.all_of([partial(self._delete_ten, queue, part) for part in in_tens(found)])
        return [each for left in answers for each in left]

    def _delete_ten(self, queue: str, found: Sequence[Found]) -> list[Found]:
        entries = [{"Id": str(number), "ReceiptHandle": each.handle} for number, each in enumerate(found)]
        answer = self.broker.session.link.ask("delete_message_batch", QueueUrl=queue, Entries=entries)
        return [found[int(each["Id"])] for each in answer.get("Failed", ())]

    def _expect_none(self, left: Sequence[Found], queue: str) -> None:
        if left:
            raise BrokerUnavailable(
                f"SQS did not delete {len(left)} of the messages in {queue!r}; they are still there. Try again."
            )

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
        """Every letter, in the order they came, with what became of it. Those that were dealt with are taken from the DLQ."""
        with self._taken() as table:
            over = table.dealt_with
            everything = {each.letter.id: each.letter for each in table.dead} | over
            check_time(table.until, self._topic)
            self._delete(self._topic.dlq, [each for each in table.dead if each.letter.id in over])
        return sorted(everything.values(), key=lambda letter: letter.id)

    @contextmanager
    def _taken(self) -> Iterator[Table]:
        """All letters, under the lock. What was not deleted when the block ends is put back."""
        session, topic = self.broker.session, self._topic
        with locked(session, topic) as until:
            taken: dict[str, list[Raw]] = {}
            try:
                for queue in (topic.dlq, topic.replays, topic.history):
                    taken[queue] = take_all(session, queue, until, believe=queue != topic.dlq)
                check_time(until, topic)  # else some are missing here
                yield Table(
                    until,
                    _folded([letters.read(self._source, raw, DEAD) for raw in taken[topic.dlq]]),
                    [letters.read(self._source, raw, otherwise=REPLAYED) for raw in taken[topic.replays]],
                    [letters.read(self._source, raw, otherwise=DISCARDED) for raw in taken[topic.history]],
                )
            finally:
                for queue, messages in taken.items():
                    put_back(session, queue, messages)


def _folded(found: Sequence[Found]) -> list[Found]:
    """Letters that a crash left twice get one id, the earlier one."""
    first: dict[object, str] = {}
    for each in sorted(found, key=lambda each: each.letter.id):
        first.setdefault(each.identity, each.letter.id)
    return [msgspec.structs.replace(each, letter=msgspec.structs.replace(each.letter, id=first[each.identity])) for each in found]
