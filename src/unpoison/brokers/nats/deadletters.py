"""Look at dead letters, send them again and remove them.

Nobody can change a stored message, and nothing joins two steps. So an operator first writes down what is to be done with a
letter, as a *claim*: the server stores one claim per letter and refuses a second one. Then it is done, each step
such that a second time changes nothing: the letter is stored as replayed or discarded, deleted as dead, and the claim
removed. An operator with claims answers under a name of its own; claims of one that was killed, and does not answer, the
next look finishes.

A replayed letter is the message that is sent again: consumers get it from there, and it stays as history.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from unpoison.brokers.nats import copies, envelope, foreign, sending_back
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.brokers.nats.claims import FIRST, Claims, letter_number, store_first
from unpoison.brokers.nats.connection import NO_MESSAGE, Connection, Refused
from unpoison.brokers.nats.copies import RECORD, Found
from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.stream_reading import AT_ONCE, Looked, count, looked, pages, read, within
from unpoison.brokers.nats.subscription import FORGETS_SINCE
from unpoison.brokers.nats.writing import Copy
from unpoison.errors import PayloadError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import WHOLE_BYTES, Published

DEAD, REPLAYED, DISCARDED, PURGED = "dead", "replayed", "discarded", "purged"
LAST_NUMBER = 2**63 - 1
GONE = (10043, 10037, 10014)
FEW = 20
"""So many letters are asked for one by one."""


class NATSDeadLetters:
    """The DLQ of one source."""

    def __init__(self, broker: NATSBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._claims = Claims(broker.client, source)

    def count(self, state: str = DEAD) -> int:
        there = count(self._connection, self._names.dlq, self._subjects(state))
        return there - (len(self._half_done()) if state == DEAD else 0)

    def freeze(self) -> str:
        info = self._connection.ask(f"STREAM.INFO.{self._names.dlq}", what="looking at the DLQ")
        return self._names.letter_id(info["state"]["last_seq"])

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        states = [DEAD, REPLAYED, DISCARDED] if state is None else [state]
        if only is not None:
            return self._only(only, states)
        first = (self._number(after) or 0) + 1
        last = self._number(until) if until else LAST_NUMBER
        found = [
            self._letter(each, name)
            for name in states
            for each in self._page(name, first, limit)
            if last is None or self._letter_number(each, name) <= last
        ]
        return [each.letter for each in sorted(found, key=lambda each: each.number)[:limit]]

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = DEAD) -> Sequence[str]:
        first, last = (self._number(after) or 0) + 1, self._number(until) if until else None
        page = self._page(state, first, limit, bodies=False)
        numbers = sorted(self._letter_number(each, state) for each in page)[:limit]
        return [self._names.letter_id(number) for number in numbers if last is None or number <= last]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        return self._deal(letter_ids, REPLAYED)

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        if state == DEAD:
            return self._deal(letter_ids, keep_as or PURGED)
        wanted = {number for id_ in letter_ids if (number := self._number(id_)) is not None}
        kept = [each for each in self._read(self._subjects(state), bodies=False) if letter_number(each) in wanted]
        floors = {group: self._handled_up_to(group) for group in {_group(each) for each in kept}} if state == REPLAYED else {}
        over = [each for each in kept if state != REPLAYED or floors[_group(each)] >= each.place.number]
        self._delete([each.place.number for each in over])
        return [self._names.letter_id(letter_number(each)) for each in over]

    def purge_history(self) -> int:
        """A replay that its consumer has not let go is all that there is of the message: it stays."""
        # What is claimed now may be stored as replayed, and not be deleted as dead yet: without the note it would be sent again.
        before = min((claim.stored for claim in self._claims.there().values()), default=LAST_NUMBER)
        groups = self._groups() | {foreign.NOBODYS}
        ends = {f"{self._names.of_group(group).replay}.*": self._handled_up_to(group) + 1 for group in groups}
        ends[f"{self._names.discarded}.*"] = LAST_NUMBER
        return sum(self._purge(subjects, min(end, before)) for subjects, end in ends.items())

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        there, first = (self._connection, self._names.dlq, self._names.dead), (self._number(after) or 0) + 1
        found = within(*there, self._half_done(), start=first, limit=limit, most_bytes=most_bytes)
        return [sending_back.whole(self._source, each, self._letter(each, DEAD)) for each in found]

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return sending_back.send_back(self.broker.client, self._source, letters)

    # Looking.

    @property
    def _connection(self) -> Connection:
        return self.broker.client.connection()

    @property
    def _names(self) -> Names:
        return self.broker.client.topic(self._source).names

    def _subjects(self, state: str) -> str:
        return {DEAD: self._names.dead, REPLAYED: f"{self._names.replays}.*", DISCARDED: f"{self._names.discarded}.*"}[state]

    def _number(self, letter_id: str) -> int | None:
        """The number in a letter's id; None if it is none of ours."""
        text = letter_id.removeprefix(self._names.letter_id(""))
        if text == letter_id or not text.isascii() or not text.isdigit() or len(text) > 19 or text != str(int(text)):
            return None
        return int(text)

    def _letter_number(self, each: Looked, state: str) -> int:
        return each.place.number if state == DEAD else letter_number(each)

    def _read(self, subjects: str, start: int = 1, limit: int | None = None, bodies: bool = True) -> list[Looked]:
        return read(self._connection, self._names.dlq, subjects, start=start, limit=limit, bodies=bodies)

    def _page(self, state: str, first: int, limit: int, bodies: bool = True) -> list[Looked]:
        """Letters in this state whose number is `first` or above."""
        if state == DEAD:
            half_done = self._half_done()
            found = self._read(self._names.dead, first, limit + len(half_done), bodies)
            return [each for each in found if each.place.number not in half_done]
        return [each for each in self._read(self._subjects(state), bodies=bodies) if letter_number(each) >= first]

    def _only(self, id_: str, states: Sequence[str]) -> list[DeadLetter]:
        number, hidden = self._number(id_), self._half_done()
        exact = [] if number is None else [each for name in states for each in self._found_one(name, number, hidden)]
        return exact or [each for name in states for each in self._with_message(name, id_, hidden)]

    def _found_one(self, state: str, number: int, hidden: Collection[int]) -> list[DeadLetter]:
        if state != DEAD:
            subject = f"{self._subjects(state).removesuffix('*')}{number}"
            return [self._letter(each, state).letter for each in self._read(subject)]
        return [self._letter(each, state).letter for each in self._one_by_one([number]) if number not in hidden]

    def _with_message(self, state: str, id_: str, hidden: Collection[int]) -> list[DeadLetter]:
        """Letters of the message with this id: the headers of all are looked at."""
        found = []
        for page in pages(self._connection, self._names.dlq, self._subjects(state), bodies=False):
            found += [each for each in page if id_.encode() in each.block and envelope.look(each.block, each.place).id == id_]
        numbers = [self._letter_number(each, state) for each in found]
        return [letter for number in numbers for letter in self._found_one(state, number, hidden)]

    def _dead(self, numbers: Sequence[int], bodies: bool = True) -> Iterator[list[Looked]]:
        """Those of these letters that are there, and perhaps others between them, page by page."""
        if _is_dense(numbers):
            count = max(numbers) - min(numbers) + 1
            yield from pages(self._connection, self._names.dlq, self._names.dead, start=min(numbers), limit=count, bodies=bodies)
            return
        for first in range(0, len(numbers), AT_ONCE):
            yield self._one_by_one(numbers[first : first + AT_ONCE])

    def _one_by_one(self, numbers: Sequence[int]) -> list[Looked]:
        questions = [(f"STREAM.MSG.GET.{self._names.dlq}", {"seq": number}) for number in numbers]
        found = []
        for answer in self._connection.ask_each(questions, "reading letters"):
            if not isinstance(answer, Refused):
                found.append(looked(self._names.dlq, answer["message"]))
            elif answer.code != NO_MESSAGE:
                raise answer
        return [each for each in found if each.subject == self._names.dead]

    def _letter(self, each: Looked, state: str) -> Found:
        number, group = self._letter_number(each, state), self._names.group
        found = copies.read(self._source, each.place, each.block, each.body, number=number, state=state, group=group)
        if self._names.given_dlq:
            found.letter = msgspec.structs.replace(found.letter, id=self._names.letter_id(number))
        return found

    def _half_done(self) -> set[int]:
        """Letters that are stored as replayed or discarded already, and not yet deleted as dead."""
        notes = [self._subjects(state).removesuffix("*") for state in (REPLAYED, DISCARDED)]
        claims = self._claims.there()
        return {number for number in claims if any(count(self._connection, self._names.dlq, f"{note}{number}") for note in notes)}

    # Changing.

    def _deal(self, letter_ids: Sequence[str], state: str) -> Sequence[str]:
        """Do this with those letters that are still there and that nobody else is dealing with."""
        numbers = [number for id_ in letter_ids if (number := self._number(id_)) is not None]
        dealt = self._finish_claims(state)
        claimed = self._claims.take([number for number in numbers if number not in dealt], state)
        dealt |= set(self._carry_out(dict.fromkeys(claimed, state)))
        return [self._names.letter_id(number) for number in numbers if number in dealt]

    def _carry_out(self, claims: dict[int, str]) -> list[int]:
        """Do what was claimed. One that is gone was dealt with before it was claimed: then only the claim is removed."""
        if not claims:
            return []
        there: list[int] = []
        wrong: PayloadError | None = None
        left: set[int] = set()
        for page in self._dead(list(claims), bodies=any(state != PURGED for state in claims.values())):
            there += [each.place.number for each in page]
            kept = [self._letter(each, DEAD) for each in page if claims.get(each.place.number) in (REPLAYED, DISCARDED)]
            sent = [each for each in kept if claims[each.number] == REPLAYED]
            if (error := foreign.send_elsewhere(self.broker.client, self._source, sent)) is not None:
                wrong = wrong or error
                left |= {each.number for each in sent}
            notes = [self._note(each, claims[each.number]) for each in kept if each.number not in left]
            store_first(self.broker.client, self._names, notes)
        numbers = [number for number in there if number in claims and number not in left]
        if _is_dense(list(claims)) and self._are_oldest(numbers, there):
            self._purge(self._names.dead, max(numbers) + 1)
        else:
            self._delete(numbers)
        self._claims.release(claims)
        if wrong is not None:
            raise wrong
        return numbers

    def _finish_claims(self, state: str) -> set[int]:
        """What an operator had begun that is no more. Returns the letters with which this was to be done."""
        finished: set[int] = set()
        by_operator: dict[str, dict[int, str]] = {}
        for number, claim in self._claims.there().items():
            by_operator.setdefault(claim.operator, {})[number] = claim.state
        for operator, begun in by_operator.items():
            if not self._claims.is_there(operator):
                finished |= {number for number in self._carry_out(begun) if begun[number] == state}
        return finished

    def _note(self, found: Found, state: str) -> Copy:
        """The letter as replayed or discarded."""
        block = envelope.copied(found.seen, found.block, found.letter.replayed(), [*_told(found), FIRST])
        is_ours = foreign.origin(self._source, found.told) is None
        replayed = self._names.of_group(found.group if is_ours else foreign.NOBODYS).replay
        return Copy(f"{replayed if state == REPLAYED else self._names.discarded}.{found.number}", block, found.letter.body)

    def _are_oldest(self, numbers: Sequence[int], there: Sequence[int]) -> bool:
        """Whether there are no other letters up to the last of these; `there` are all between the first and the last."""
        if (
            not numbers
            or self._connection.version < FORGETS_SINCE
            or any(number < max(numbers) for number in set(there) - set(numbers))
        ):
            return False
        question = {"next_by_subj": self._names.dead, "seq": 1}
        oldest = self._connection.ask(f"STREAM.MSG.GET.{self._names.dlq}", question, "looking for the oldest letter")
        return bool(oldest["message"]["seq"] == min(numbers))

    def _purge(self, subjects: str, end: int) -> int:
        """Delete what is on these subjects before this number. Returns how many there were."""
        if end <= 1:
            return 0
        question = {"filter": subjects} if end == LAST_NUMBER else {"filter": subjects, "seq": end}
        return int(self._connection.ask(f"STREAM.PURGE.{self._names.dlq}", question, "removing letters")["purged"])

    def _delete(self, numbers: Iterable[int]) -> None:
        endpoint = f"STREAM.MSG.DELETE.{self._names.dlq}"
        questions = [(endpoint, {"seq": number, "no_erase": True}) for number in numbers]
        for answer in self._connection.ask_each(questions, "removing letters"):
            if isinstance(answer, Refused) and answer.code not in GONE and "not found" not in answer.text:
                raise answer

    def _groups(self) -> set[str]:
        """Those that have a consumer of replays."""
        names: list[str] = []
        while True:
            answer = self._connection.ask(f"CONSUMER.NAMES.{self._names.dlq}", {"offset": len(names)}, "looking at replays")
            names += answer.get("consumers") or []
            if not answer.get("consumers") or len(names) >= answer["total"]:
                return set(names)

    def _handled_up_to(self, group: str) -> int:
        """The number up to which the group's consumer has let replays go; all, of those that no group is to get."""
        if group == foreign.NOBODYS:
            return LAST_NUMBER
        with suppress(Refused):
            info = self._connection.ask(f"CONSUMER.INFO.{self._names.dlq}.{group}", what="looking at replays")
            return int(info["ack_floor"]["stream_seq"])
        return 0


def _is_dense(numbers: Sequence[int]) -> bool:
    """Whether it is better to read all from the first to the last of them than each by itself."""
    return len(numbers) > FEW and max(numbers) - min(numbers) < 2 * len(numbers)


def _group(replayed: Looked) -> str:
    return replayed.subject.split(".")[2]


def _told(found: Found) -> list[bytes]:
    """What the letter says, kept with what became of it."""
    known = envelope.fields(found.block)
    lines = [envelope.line(envelope.GROUP, found.group)]
    if found.told is not None:
        return lines + copies.about(found.letter)
    return [*lines, RECORD + b": " + known[RECORD]] if RECORD in known else lines
