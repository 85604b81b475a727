"""How are dead letters looked at, sent again and removed in NATS?

Nobody can change a stored message, and nothing joins two steps. So an operator first writes down what is to be done with a
letter, as a *claim*: the server stores one claim per letter, whoever comes second is refused. Then it is done, each step
such that a second time changes nothing: the letter is stored as replayed or discarded, deleted as dead, and the claim
removed. Whoever has claims answers under a name of its own; what is claimed by one who does not, since it was killed, the
next look finishes.

A replayed letter is the message that is sent again: consumers get it from there, and it stays as history.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from unpoison.brokers.nats import envelope, letters, wire
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.brokers.nats.lane import here
from unpoison.brokers.nats.letters import RECORD, Found
from unpoison.brokers.nats.link import NO_RESPONDERS, Link, Refused
from unpoison.brokers.nats.looking import Looked, read
from unpoison.brokers.nats.names import Names
from unpoison.brokers.nats.writing import WRONG_LAST_SEQUENCE, Copy, unique
from unpoison.deadletters.record import DeadLetter
from unpoison.errors import BrokerUnavailable

DEAD, REPLAYED, DISCARDED, PURGED = "dead", "replayed", "discarded", "purged"
FIRST = envelope.line(b"Nats-Expected-Last-Subject-Sequence", 0)
"""Stored only if nothing was stored under this subject before."""

LAST_NUMBER = 2**63 - 1
GONE = (10043, 10037, 10014)


class NATSDeadLetters:
    """The DLQ of one source."""

    def __init__(self, broker: NATSBroker, source: str) -> None:
        self.broker, self._source = broker, source
        self._me: tuple[Link, str] | None = None

    def count(self, state: str = DEAD) -> int:
        return self._count(self._subjects(state)) - (len(self._half_done()) if state == DEAD else 0)

    def freeze(self) -> str:
        info = self.broker.session.link().ask(f"STREAM.INFO.{self._names.dlq}", what="looking at the DLQ")
        return f"{self._source}-{info['state']['last_seq']}"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        states = [DEAD, REPLAYED, DISCARDED] if state is None else [state]
        if only is not None:
            number = self._number(only)
            if number is None:
                return []
            hidden = self._half_done()
            return [
                each.letter for name in states if name != DEAD or number not in hidden for each in self._found(name, [number])
            ]
        first = (self._number(after) or 0) + 1
        last = self._number(until) if until else LAST_NUMBER
        found = [each for name in states for each in self._page(name, first, limit) if last is None or each.number <= last]
        return [each.letter for each in sorted(found, key=lambda each: each.number)[:limit]]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        return self._deal(letter_ids, REPLAYED)

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        if state == DEAD:
            return self._deal(letter_ids, keep_as or PURGED)
        wanted = {number for id_ in letter_ids if (number := self._number(id_)) is not None}
        kept = [each for each in self._read(self._subjects(state)) if _letter_number(each) in wanted]
        over = [each for each in kept if state != REPLAYED or self._is_handled(each)]
        self._delete([each.place.number for each in over])
        return [f"{self._source}-{_letter_number(each)}" for each in over]

    @property
    def _names(self) -> Names:
        return self.broker.session.topic(self._source).names

    def _subjects(self, state: str) -> str:
        return {DEAD: self._names.dead, REPLAYED: f"{self._names.replays}.*", DISCARDED: f"{self._names.discarded}.*"}[state]

    def _number(self, letter_id: str) -> int | None:
        """The number in a letter's id; None if it is none of ours."""
        text = letter_id.removeprefix(f"{self._source}-")
        if text == letter_id or not text.isascii() or not text.isdigit() or len(text) > 19 or text != str(int(text)):
            return None
        return int(text)

    def _count(self, subjects: str) -> int:
        question = {"subjects_filter": subjects}
        info = self.broker.session.link().ask(f"STREAM.INFO.{self._names.dlq}", question, "counting letters")
        return sum((info["state"].get("subjects") or {}).values())

    def _read(self, subjects: str, start: int = 1, limit: int | None = None) -> list[Looked]:
        return read(self.broker.session.link(), self._names.dlq, subjects, start=start, limit=limit)

    def _page(self, state: str, first: int, limit: int) -> list[Found]:
        """Letters in this state whose number is `first` or above."""
        if state == DEAD:
            half_done = self._half_done()
            letters_ = self._read(self._names.dead, first, limit + len(half_done))
            return [self._letter(each, state) for each in letters_ if each.place.number not in half_done]
        return [self._letter(each, state) for each in self._read(self._subjects(state)) if _letter_number(each) >= first]

    def _found(self, state: str, numbers: Sequence[int]) -> list[Found]:
        """Those of these letters that are in this state."""
        if not numbers:
            return []
        if state == DEAD:
            between = self._read(self._names.dead, min(numbers), max(numbers) - min(numbers) + 1)
            return [self._letter(each, state) for each in between if each.place.number in set(numbers)]
        subjects = self._subjects(state).removesuffix("*")
        return [self._letter(each, state) for number in numbers for each in self._read(f"{subjects}{number}")]

    def _letter(self, looked: Looked, state: str) -> Found:
        number = looked.place.number if state == DEAD else _letter_number(looked)
        group = self._names.group
        return letters.read(self._source, looked.place, looked.block, looked.body, number=number, state=state, group=group)

    def _deal(self, letter_ids: Sequence[str], state: str) -> Sequence[str]:
        """Do this with those letters that are still there and that nobody else is dealing with."""
        numbers = [number for id_ in letter_ids if (number := self._number(id_)) is not None]
        finished = self._finish_claims(state)
        there = {each.number for each in self._found(DEAD, numbers)}
        wanted = [number for number in numbers if number in there]
        block = envelope.block([FIRST])
        claim = f"{state} {self._operator()}".encode()
        refused = self._store([Copy(f"{self._names.claim}.{number}", block, claim) for number in wanted])
        claimed = [number for index, number in enumerate(wanted) if index not in refused]
        dealt = finished | set(self._carry_out(dict.fromkeys(claimed, state)))
        return [f"{self._source}-{number}" for number in numbers if number in dealt]

    def _carry_out(self, claims: dict[int, str]) -> list[int]:
        """Do what was claimed. One that is gone was dealt with before it was claimed: then only the claim is removed."""
        if not claims:
            return []
        found = self._found(DEAD, list(claims))
        makers: dict[str, Callable[[Found], Copy]] = {REPLAYED: self._replayed, DISCARDED: self._discarded}
        self._store([makers[state](each) for each in found if (state := claims[each.number]) in makers])
        self._delete([each.number for each in found])
        self._remove_claims(claims)
        return [each.number for each in found]

    def _finish_claims(self, state: str) -> set[int]:
        """What an operator had begun that is no more. Returns the letters with which this was to be done."""
        finished: set[int] = set()
        claims: dict[str, dict[int, str]] = {}
        for number, (begun, operator) in self._claims().items():
            claims.setdefault(operator, {})[number] = begun
        for operator, begun_by in claims.items():
            if not self._is_there(operator):
                finished |= {number for number in self._carry_out(begun_by) if begun_by[number] == state}
        return finished

    def _claims(self) -> dict[int, tuple[str, str]]:
        """By letter: what is to be done, and who is to do it."""
        subjects = f"{self._names.claim}.*"
        if not self._count(subjects):
            return {}
        texts = {_letter_number(each): each.body.decode("utf-8", "replace") for each in self._read(subjects)}
        return {number: (text.partition(" ")[0], text.partition(" ")[2]) for number, text in texts.items()}

    def _half_done(self) -> set[int]:
        """Letters that are stored as replayed or discarded already, and not yet deleted as dead."""
        claims = self._claims()
        notes = [self._subjects(state).removesuffix("*") for state in (REPLAYED, DISCARDED)]
        return {number for number in claims if any(self._count(f"{subject}{number}") for subject in notes)}

    def _operator(self) -> str:
        """The name under which this one answers, for as long as its connection lasts."""
        link = self.broker.session.link()
        if self._me is None or self._me[0] is not link:
            name = unique()
            link.subscribe(_asked(name), lambda _, reply, __, ___: here(link, reply))
            self._me = (link, name)
        return self._me[1]

    def _is_there(self, operator: str) -> bool:
        if self._me is not None and operator == self._me[1]:
            return False  # what is left of our own was cut off by an error
        block, _ = self.broker.session.link().request(_asked(operator), b"", "asking for another operator")
        return wire.status(block) != NO_RESPONDERS

    def _remove_claims(self, claims: dict[int, str]) -> None:
        endpoint = f"STREAM.PURGE.{self._names.dlq}"
        questions = [(endpoint, {"filter": f"{self._names.claim}.{number}"}) for number in claims]
        self.broker.session.link().ask_all(questions, "removing claims")

    def _replayed(self, found: Found) -> Copy:
        block = envelope.copied(found.seen, found.block, found.letter.replayed(), [*_told(found), FIRST])
        return Copy(f"unpoison.replay.{found.group}.{self._source}.{found.number}", block, found.letter.body)

    def _discarded(self, found: Found) -> Copy:
        block = envelope.copied(found.seen, found.block, found.letter.replayed(), [*_told(found), FIRST])
        return Copy(f"{self._names.discarded}.{found.number}", block, found.letter.body)

    def _store(self, copies: Sequence[Copy]) -> set[int]:
        """Returns those that had been stored before."""
        refused = self.broker.session.store(copies)
        failed = [why for why in refused.values() if why.code != WRONG_LAST_SEQUENCE]
        if failed:
            raise BrokerUnavailable(f"Nothing was taken from {self._names.dlq!r}: NATS refuses to store there: {failed[0].text}.")
        return set(refused)

    def _delete(self, numbers: Sequence[int]) -> None:
        endpoint = f"STREAM.MSG.DELETE.{self._names.dlq}"
        questions = [(endpoint, {"seq": number, "no_erase": True}) for number in numbers]
        for answer in self.broker.session.link().ask_each(questions, "removing letters"):
            if isinstance(answer, Refused) and answer.code not in GONE and "not found" not in answer.text:
                raise answer

    def _is_handled(self, replayed: Looked) -> bool:
        """Whether its consumer has let it go. Until then it is all that there is of the message."""
        group = replayed.subject.split(".")[2]
        with suppress(Refused):
            info = self.broker.session.link().ask(f"CONSUMER.INFO.{self._names.dlq}.{group}", what="looking at replays")
            return bool(info["ack_floor"]["stream_seq"] >= replayed.place.number)
        return False


def _asked(operator: str) -> bytes:
    return f"unpoison.operator.{operator}".encode()


def _letter_number(looked: Looked) -> int:
    """The letter that a claim, a replay or a discard is about: the last part of its subject."""
    text = looked.subject.rpartition(".")[2]
    return int(text) if text.isdigit() else 0


def _told(found: Found) -> list[bytes]:
    """What the letter says, kept with what became of it."""
    known = envelope.fields(found.block)
    lines = [envelope.line(letters.GROUP, found.group)]
    return [*lines, RECORD + b": " + known[RECORD]] if RECORD in known else lines
