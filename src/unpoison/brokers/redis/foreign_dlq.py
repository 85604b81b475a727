"""Open a stream or a list as a DLQ by its own name, whoever made it: `--dlq orders:failed`.

To look at it changes nothing. What is done with letters is done by the same scripts as in a DLQ of unpoison's own, each of them
one step: of two operators only one gets a letter. The latest letters that were dealt with are kept beside it, in keys of its own.
"""

from collections.abc import Callable, Collection, Sequence

from unpoison.brokers.redis import sending_back
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.brokers.redis.deadletters import LetterEntry, Read, RedisDeadLetters
from unpoison.brokers.redis.listed_letters import Found, ListedLetters
from unpoison.brokers.redis.names import SOURCES
from unpoison.errors import ConfigError, PayloadError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import Published, Refused, not_sent
from unpoison.port.broker_url import dlqs_of, with_dlq
from unpoison.port.foreign import dlq as by_name


def opened(url: str, dlq: str, accepted: Collection[str]) -> "ForeignList | ForeignStream":
    by_name.check_accepted(accepted)
    named = [source for source, name in dlqs_of(url).items() if name == dlq]
    broker = RedisBroker(with_dlq(url, dlq, dlq))
    broker.connection.open(dlq)
    try:
        kind = broker.connection.ask(dlq, ("TYPE", dlq))[0].decode()
        if kind not in ("list", "stream", "none"):
            raise ConfigError(f"{dlq!r} at {broker.address.shown} is a {kind}: letters are in a stream or in a list.")
        usual = dlq.removeprefix("dlq:")
        if kind == "stream" and (named or (usual != dlq and broker.connection.ask(SOURCES, ("SISMEMBER", SOURCES, usual))[0])):
            raise by_name.is_ours(dlq, named[0] if named else usual)
    except BaseException:
        broker.close()
        raise
    # Redis removes a list with its last element, so a key that is not there may be a list without letters.
    return ForeignStream(broker, dlq) if kind == "stream" else ForeignList(broker, dlq)


class ForeignStream(RedisDeadLetters):
    """Any stream."""

    def _shown(self, entry: LetterEntry) -> DeadLetter:
        return self._read(entry).letter

    def _read(self, entry: LetterEntry) -> Read:
        read = super()._read(entry)
        source = read.target if read.told is not None else str(read.letter.original.get("source", ""))
        return read._replace(letter=by_name.of_source(read.letter, source or self._source))

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Letters of unpoison belong to one group of their source, and the scripts send to groups of this stream only."""
        for read in map(self._read, self._dead(letter_ids)):
            if read.letter.source == self._source:
                raise by_name.without_origin(read.letter.id)
            if read.told is None:
                raise PayloadError(
                    f"Letter {read.letter.id!r} is one of unpoison's own, of source {read.letter.source!r}, and can be sent "
                    f"from a store only: unpoison collect --dlq {self._source} --store URL"
                )
        return super().replay(letter_ids)

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        return _send_back(self._source, letters, lambda source, part: sending_back.send_back(self.broker, source, part))


class ForeignList(ListedLetters):
    """Any list."""

    def _found(self, state: str, id_: str, element: bytes) -> Found:
        found = super()._found(state, id_, element)
        return found._replace(letter=by_name.of_source(found.letter, found.target))

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        for id_, element in self._among("dead", letter_ids).items():
            if self._found("dead", id_, element).target == self._source:
                raise by_name.without_origin(id_)
        return super().replay(letter_ids)

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        def send(_: str, part: Sequence[WholeLetter]) -> Published:
            return sending_back.send_back(self.broker, self._source, part, makes_lists=True)

        return _send_back(self._source, letters, send)


def _send_back(dlq: str, letters: Sequence[WholeLetter], send: Callable[[str, Sequence[WholeLetter]], Published]) -> Published:
    """Letters of several sources, those of each together."""
    by_source: dict[str, list[int]] = {}
    for number, whole in enumerate(letters):
        by_source.setdefault(whole.letter.source, []).append(number)
    refused: dict[int, Refused] = {
        number: not_sent(by_name.without_origin(letters[number].letter.id)) for number in by_source.pop(dlq, ())
    }
    unknown: dict[int, str] = {}
    for source, numbers in by_source.items():
        outcome = send(source, [letters[number] for number in numbers])
        refused |= {numbers[at]: why for at, why in outcome.refused.items()}
        unknown |= {numbers[at]: why for at, why in outcome.unknown.items()}
    return Published(refused, unknown)
