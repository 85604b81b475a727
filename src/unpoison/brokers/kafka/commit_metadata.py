"""How is the state of a partition written into the metadata of its committed offset?

The committed offset is that of the first message that is not done. The text describes the messages from there on, as runs of one
state with their lengths: `A3.2A` is one message that may have been started, three that are done, and two that may have been
started. Small letters were not started by the consumer that wrote them. A, B and C tell how often the message was lost together
with its consumer: 0, 1 or 2 times. Messages after the end of the text were not touched.

After the text come `@` and the id of the topic: a commit that was on its way while the topic was deleted and created again is
stored for the new topic, and says nothing about it.

Kafka keeps at most 4,096 characters, and the client needs one of them.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

VERSION = "unpoison/1"
LONGEST = 4_000
DONE = "."
SMALL, LARGE = "abc", "ABC"
_TAG = re.compile(r" @([A-Za-z0-9_+/-]{22})$")


class Start(msgspec.Struct, frozen=True, array_like=True):
    """One start of one message, alone in its consumer, that has not been seen to end."""

    by: str
    at: float


class CommittedState(msgspec.Struct):
    """What a text says: by offset, how often each unfinished message was lost; and the offset after the last one."""

    losses: dict[int, int]
    started: set[int]
    top: int
    starts: dict[int, list[Start]]


def encode(first: int, letters: Sequence[tuple[int, str]], top: int, starts: Mapping[int, Sequence[Start]] = {}) -> str:
    """The state of the offsets from `first` up to `top`: `letters` of those that are not done, in order.

    What does not fit is written as one run of messages that may have been started: done ones among them may be repeated.
    """
    runs: list[str] = []
    at, i, count, room = first, 0, len(letters), LONGEST - len(assemble("", starts)) - 20
    while i < count:
        offset, letter = letters[i]
        if offset > at:
            runs.append(_run(offset - at, DONE))
        length = 1
        while i + length < count and letters[i + length] == (offset + length, letter):
            length += 1
        runs.append(_run(length, letter))
        at, i = offset + length, i + length
        room -= sum(map(len, runs[-2:]))
        if room < 0 and i < count:
            runs.append(_run(top - at, max(letter for _, letter in letters[i:]).upper()))
            return assemble("".join(runs), starts)
    if top > at:
        runs.append(_run(top - at, DONE))
    return assemble("".join(runs), starts)


def assemble(runs: str, starts: Mapping[int, Sequence[Start]] = {}) -> str:
    noted = f" {msgspec.json.encode({str(offset): list(each) for offset, each in starts.items()}).decode()}" if starts else ""
    return f"{VERSION} {runs}{noted}"


def with_topic_id(text: str, topic_id: str) -> str:
    """The text with the id of its topic, if that is known."""
    return f"{text} @{topic_id}" if topic_id else text


def split_topic_id(metadata: str | None) -> tuple[str, str]:
    """The text, and the id of its topic; empty if it has none."""
    text = (metadata or "").rstrip("\0")
    found = _TAG.search(text)
    return (text[: found.start()], found[1]) if found else (text, "")


def _run(length: int, letter: str) -> str:
    return letter if length == 1 else f"{length}{letter}"


def decode(first: int, metadata: str | None) -> CommittedState:
    """What a text says. Another program's text, or none, says nothing."""
    state = CommittedState({}, set(), first, {})
    version, _, rest = split_topic_id(metadata)[0].partition(" ")
    if version != VERSION:
        return state
    runs, _, noted = rest.partition(" ")
    number = ""
    for letter in runs:
        if letter.isdigit():
            number += letter
            continue
        _add(state, letter, int(number or 1))
        number = ""
    if noted:
        state.starts = msgspec.json.decode(noted, type=dict[int, list[Start]], strict=False)
    return state


def _add(state: CommittedState, letter: str, length: int) -> None:
    offsets = range(state.top, state.top + length)
    state.top += length
    if letter == DONE:
        return
    if letter in LARGE:
        state.started.update(offsets)
    state.losses.update(dict.fromkeys(offsets, (SMALL if letter in SMALL else LARGE).index(letter)))
