"""Open a stream as a DLQ by its own name, whoever made it: `--dlq FAILED`.

Messages are asked for by their numbers, so no consumer is made there, and a stream from which consumers take messages may be
looked at too. Letters of unpoison that another tool has put there go to their source, others to the subject that they came from.
"""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from unpoison.brokers.nats import copies, foreign, sending_back
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.brokers.nats.connection import NO_MESSAGE, Connection, Refused
from unpoison.brokers.nats.copies import Found
from unpoison.brokers.nats.deadletters import DEAD, GONE
from unpoison.brokers.nats.stream_reading import AT_ONCE, Looked, looked
from unpoison.brokers.nats.subscription import FORGETS_SINCE
from unpoison.brokers.nats.topology import config_of
from unpoison.errors import CapabilityError, PayloadError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.wording import counted
from unpoison.port.broker import WHOLE_BYTES, Published, not_sent
from unpoison.port.broker import Refused as NotSent
from unpoison.port.foreign import dlq as by_name


def opened(url: str, dlq: str, accepted: Collection[str]) -> "ForeignDLQ":
    by_name.check_accepted(accepted)
    broker = NATSBroker(url)
    broker.open([], create=False)
    try:
        where, connection = broker.client.address, broker.client.connection()
        config = config_of(connection, f"STREAM.INFO.{dlq}") if _is_name(dlq) else None
        if config is None:
            raise by_name.not_there("stream", dlq, where.shown)
        if any(subject.startswith("unpoison.dead.") for subject in config.get("subjects") or []):
            named = [source for source, name in where.dlqs.items() if name == dlq]
            raise by_name.is_ours(dlq, named[0] if named else dlq.removesuffix("_DLQ"))
        return ForeignDLQ(broker, dlq, can_delete=not (config.get("deny_delete") or config.get("sealed")))
    except BaseException:
        broker.close()
        raise


def _is_name(dlq: str) -> bool:
    return bool(dlq) and not set(" \t\r\n.*>/\\") & set(dlq)


class ForeignDLQ:
    """Any stream."""

    page = 250

    def __init__(self, broker: NATSBroker, stream: str, *, can_delete: bool) -> None:
        self.broker, self._stream, self._can_delete = broker, stream, can_delete

    def count(self, state: str = DEAD) -> int:
        return int(self._state()["messages"]) if state == DEAD else 0

    def freeze(self) -> str:
        return f"{self._stream}-{self._state()['last_seq']}"

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        if state not in (DEAD, None):
            return []
        if only is None:
            return [found.letter for _, found in self._read(self._number(after) + 1, self._number(until) or None, limit)]
        if number := self._number(only):
            return [found.letter for _, found in self._read(number, number, 1)]
        return [found.letter for _, found in self._read(1, None, None) if found.letter.message.id == only]

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        found: list[WholeLetter] = []
        for each, letter in self._read(self._number(after) + 1, None, limit):
            found.append(sending_back.whole(self._stream, each, letter))
            most_bytes -= max(1, len(each.body))
            if most_bytes <= 0:
                break
        return found

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        """Those of unpoison to the group that gave them up, others to the subject that they came from."""

        def source_of(whole: WholeLetter) -> str | NotSent:
            source = whole.letter.source
            return not_sent(by_name.without_origin(whole.letter.id)) if source == self._stream else source

        return sending_back.send_back_each(self.broker.client, source_of, letters)

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """A letter is sent and then deleted. Within the duplicate window of its stream it is stored once, whoever is killed."""
        self._check_can_delete()
        there = {whole.letter.id: whole for id_ in letter_ids for whole in self._one(id_)}
        letters = list(there.values())
        outcome = self.send_back(letters)
        why = {number: each.reason for number, each in outcome.refused.items()} | dict(outcome.unknown)
        sent = [whole.letter.id for number, whole in enumerate(letters) if number not in why]
        self._delete(sent)
        if why:
            raise PayloadError(
                f"{counted(len(sent), 'letter')} of {self._stream!r} sent, {len(why):,} not: {next(iter(why.values()))}"
            )
        return sent

    def _one(self, letter_id: str) -> list[WholeLetter]:
        number = self._number(letter_id)
        return [sending_back.whole(self._stream, *each) for each in self._read(number, number, 1)] if number else []

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        if not letter_ids or state != DEAD:
            return []
        if keep_as is not None:
            raise by_name.keeps_no_history(self._stream)
        self._check_can_delete()
        return self._delete(letter_ids)

    def _check_can_delete(self) -> None:
        if not self._can_delete:
            raise CapabilityError(
                f"Letters in {self._stream!r} can only be looked at: the stream lets nobody delete messages (deny_delete, or it "
                f"is sealed). Copy it into another stream, and name that."
            )

    def _delete(self, letter_ids: Sequence[str]) -> Sequence[str]:
        endpoint = f"STREAM.MSG.DELETE.{self._stream}"
        numbers = {id_: self._number(id_) for id_ in letter_ids}
        questions = [(endpoint, {"seq": number, "no_erase": True}) for number in numbers.values() if number]
        deleted: list[str] = []
        for id_, answer in zip(
            [id_ for id_, number in numbers.items() if number],
            self._connection.ask_each(questions, "removing letters"),
            strict=True,
        ):
            if not isinstance(answer, Refused):
                deleted.append(id_)
            elif answer.code not in GONE and "not found" not in answer.text:
                raise answer
        return deleted

    # Reading.

    @property
    def _connection(self) -> Connection:
        return self.broker.client.connection()

    def _state(self) -> dict[str, int]:
        found: dict[str, int] = self._connection.ask(f"STREAM.INFO.{self._stream}", what="looking at the stream")["state"]
        return found

    def _number(self, letter_id: str) -> int:
        """The number in a letter's id; 0 if it is none of this stream."""
        text = letter_id.removeprefix(f"{self._stream}-")
        return int(text) if text != letter_id and text.isascii() and text.isdecimal() and len(text) < 20 else 0

    def _read(self, first: int, last: int | None, limit: int | None) -> Iterator[tuple[Looked, Found]]:
        left = limit
        for each in self._messages(first, last):
            if left is not None:
                if left <= 0:
                    return
                left -= 1
            yield each, self._found(each)

    def _messages(self, first: int, last: int | None) -> Iterator[Looked]:
        """By their numbers: that needs no consumer, which some streams would take for one more that has to have each message."""
        state = self._state()
        number, last = max(first, state["first_seq"], 1), state["last_seq"] if last is None else min(last, state["last_seq"])
        while number <= last and (start := self._next(number, last)) is not None:
            numbers = range(start, min(start + AT_ONCE, last + 1))
            questions = [(f"STREAM.MSG.GET.{self._stream}", {"seq": each}) for each in numbers]
            for answer in self._connection.ask_each(questions, f"reading stream {self._stream}"):
                if not isinstance(answer, Refused):
                    yield looked(self._stream, answer["message"])
                elif answer.code != NO_MESSAGE:
                    raise answer
            number = start + AT_ONCE

    def _next(self, number: int, last: int) -> int | None:
        """The first number from this one on that a message has; None if there is none. Older servers cannot be asked for it."""
        if number == last or self._connection.version < FORGETS_SINCE:
            return number
        try:
            question = {"seq": number, "next_by_subj": ">"}
            return int(self._connection.ask(f"STREAM.MSG.GET.{self._stream}", question, "looking for letters")["message"]["seq"])
        except Refused as refused:
            if refused.code != NO_MESSAGE:
                raise
            return None

    def _found(self, each: Looked) -> Found:
        number, group = each.place.number, self.broker.client.address.group
        found = copies.read(self._stream, each.place, each.block, each.body, number=number, state=DEAD, group=group)
        told = foreign.origin(self._stream, found.told) if found.told is not None else found.letter.original.get("source")
        is_ours = found.told is None and copies.is_letter(each.block)
        source = str(told or self._stream) if is_ours or found.told is not None else self._stream
        return msgspec.structs.replace(found, letter=by_name.of_source(found.letter, source))
