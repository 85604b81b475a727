"""The `DeadLetters` of the store. To replay a letter is to rename its file: from then on consumers find it among the replays."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.contract.folder_adapter import envelope
from tests.contract.folder_adapter.broker import FORM, FolderBroker, Folders, folders
from tests.contract.folder_adapter.queue import File, Queue, name_of
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.port.broker import STORED, WHOLE_BYTES, Finding, Published
from unpoison.port.broker_url import parse

DEAD, REPLAYED, DISCARDED = "dead", "replayed", "discarded"


class FolderDeadLetters:
    def __init__(self, broker: FolderBroker, source: str) -> None:
        self.broker, self._source = broker, source

    def count(self, state: str = DEAD) -> int:
        return sum(1 for _ in self._files(state))

    def freeze(self) -> str:
        return max((self._id(file) for _, _, file in self._files(None)), default=f"{self._source}-")

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = DEAD
    ) -> Sequence[DeadLetter]:
        files = sorted(self._files(state), key=lambda each: each[2].id)
        if only is not None:
            exact = [each for each in files if self._id(each[2]) == only]
            return [*self._read(exact)] or [letter for letter in self._read(files) if letter.message.id == only]
        chosen = [each for each in files if self._id(each[2]) > after and (not until or self._id(each[2]) <= until)]
        return [*self._read(chosen[:limit])]

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        return self._moved(letter_ids, DEAD, self._folders.replays)

    def remove(self, letter_ids: Sequence[str], *, state: str = DEAD, keep_as: str | None = None) -> Sequence[str]:
        return self._moved(letter_ids, state, self._folders.discarded if keep_as else None)

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        found: list[WholeLetter] = []
        for _, queue, file in sorted(self._files(DEAD), key=lambda each: each[2].id):
            if self._id(file) > after and len(found) < limit and most_bytes > 0:
                try:
                    data = queue.read(file.name)
                except FileNotFoundError:
                    continue  # another operator has it by now
                letter = envelope.letter_read(self._source, file.id, DEAD, data)
                found.append(WholeLetter(letter=letter, native=data))
                most_bytes -= len(data)
        return found

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        unknown: dict[int, str] = {}
        for number, each in enumerate(letters):
            queue = self._folders.suspects if each.letter.replayed().alone else self._folders.work
            try:
                queue.send(envelope.sent_back(each))
            except OSError as error:
                unknown[number] = str(error)
        return Published(unknown=unknown) if unknown else STORED

    @property
    def _folders(self) -> Folders:
        return folders(self.broker.root, self._source)

    def _id(self, file: File) -> str:
        return f"{self._source}-{file.id}"

    def _files(self, state: str | None) -> Iterator[tuple[str, Queue, File]]:
        there = self._folders
        queues = ((DEAD, there.dead), (REPLAYED, there.replays), (REPLAYED, there.history), (DISCARDED, there.discarded))
        for known, queue in queues:
            if state in (None, known):
                yield from ((known, queue, file) for file in queue.files())

    def _read(self, files: Sequence[tuple[str, Queue, File]]) -> Iterator[DeadLetter]:
        for state, queue, file in files:
            try:
                data = queue.read(file.name)
            except FileNotFoundError:
                continue  # another operator, or a consumer, has it by now
            yield envelope.letter_read(self._source, file.id, state, data)

    def _moved(self, letter_ids: Sequence[str], state: str, target: Queue | None) -> list[str]:
        """Move these to another queue, or delete them. Of two operators who try only one can. A letter among the replays is all
        that there is of its message, so it stays."""
        wanted, moved = set(letter_ids), []
        for _, queue, file in self._files(state):
            if self._id(file) in wanted and queue.path.name != "replays":
                try:
                    path = queue.path / file.name
                    path.unlink() if target is None else path.rename(target.path / name_of(0.0, 0, file.id))
                except FileNotFoundError:
                    continue
                moved.append(self._id(file))
        return [id_ for id_ in letter_ids if id_ in moved]


NAMES: tuple[str, ...] = ()
DEEP: tuple[str, ...] = ()


def known_sources(url: str) -> Sequence[str]:
    root = Path(parse(url, FORM).path)
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def examine(url: str, sources: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:
    """Nothing about a folder loses messages."""
    return ()
