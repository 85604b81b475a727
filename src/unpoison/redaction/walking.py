"""How are values in a JSON text replaced, and all else left as it is?

The text is gone through token by token and never decoded as a whole: numbers of any length, members of one name, the order and
the space between stay what they were. It has to be JSON (`is_json`), or nothing can be said about it.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from unpoison.redaction.rules import ANY, DEEP, Parsed, Step

State = tuple[tuple[int, int], ...]
"""How far each rule has been followed: its number, and how many of its steps."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_OPENS, _CLOSES = ("{", "["), ("}", "]")
_EMPTY = ("null", '""')

_checked = msgspec.json.Decoder(msgspec.Raw).decode


def is_json(body: bytes) -> bool:
    try:
        _checked(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError):
        return False
    return True


class Paths:
    """The paths of rules into a body, followed step by step."""

    def __init__(self, rules: Iterable[Parsed]) -> None:
        self.rules = tuple(rules)

    @property
    def start(self) -> State:
        return self._with_deep({(number, 0) for number in range(len(self.rules))})

    def into_member(self, state: State, name: str) -> State:
        if not state:
            return state
        folded = name.lower()
        found: set[tuple[int, int]] = set()
        for number, at in state:
            step = self._step(number, at)
            if step == DEEP:
                found.add((number, at))
            elif step == ANY or (isinstance(step, str) and step.lower() == folded):
                found.add((number, at + 1))
        return self._with_deep(found)

    def into_element(self, state: State, index: int) -> State:
        """A name means the same member of each element of a list: body.items.name is body.items[].name."""
        if not state:
            return state
        found: set[tuple[int, int]] = set()
        for number, at in state:
            step = self._step(number, at)
            if step == DEEP or isinstance(step, str):
                found.add((number, at))
            elif step in (ANY, index):
                found.add((number, at + 1))
        return self._with_deep(found)

    def hits(self, state: State) -> list[Parsed]:
        """The rules that mean the value which is here."""
        return [self.rules[number] for number, at in state if at == len(self.rules[number].steps)]

    def _step(self, number: int, at: int) -> Step | None:
        steps = self.rules[number].steps
        return steps[at] if at < len(steps) else None

    def _with_deep(self, found: set[tuple[int, int]]) -> State:
        """`**` also stands for no step at all."""
        for number, at in tuple(found):
            further = at
            while self._step(number, further) == DEEP:
                further += 1
                found.add((number, further))
        return tuple(sorted(found))


class Found(NamedTuple):
    """A value that rules hit: its text (None for a list or an object), and the texts of all values in it."""

    rules: Sequence[Parsed]
    text: str | None
    inside: Sequence[str]


Mask = Callable[[Found], str]
Scrub = Callable[[str], str]


class _Frame:
    """A list or an object that is open."""

    __slots__ = ("index", "is_list", "name", "state")

    def __init__(self, state: State, is_list: bool) -> None:
        self.state, self.is_list = state, is_list
        self.index, self.name = 0, None if is_list else ""


class _Walk:
    """One way through a text."""

    def __init__(self, text: str, paths: Paths, mask: Mask, scrub: Scrub | None) -> None:
        self._text, self._paths, self._mask, self._scrub = text, paths, mask, scrub
        self._open: list[_Frame] = []
        self._next: State | None = paths.start
        """How far rules are in the value that comes next; None where the name of a member comes."""
        self._edits: list[tuple[int, int, str]] = []

    def redacted(self) -> str:
        tokens = _TOKEN.finditer(self._text)
        for token in tokens:
            mark = token[0]
            if mark in _CLOSES:
                self._open.pop()
            elif mark == ",":
                self._behind_comma()
            elif mark != ":":
                self._token(token, mark, tokens)
        return self._edited()

    def _token(self, token: re.Match[str], mark: str, tokens: Iterable[re.Match[str]]) -> None:
        if self._next is None:  # the name of a member
            state = self._open[-1].state
            self._next = self._paths.into_member(state, string(mark)) if state else state
            self._change(token, mark)
            return
        state = self._next
        rules = self._paths.hits(state) if state else ()
        if rules:
            self._hit(token, rules, tokens)
        elif mark in _OPENS:
            self._open.append(_Frame(state, mark == "["))
            self._next = self._paths.into_element(state, 0) if mark == "[" else None
        else:
            self._change(token, mark)

    def _behind_comma(self) -> None:
        frame = self._open[-1]
        frame.index += 1
        self._next = self._paths.into_element(frame.state, frame.index) if frame.is_list else None

    def _hit(self, token: re.Match[str], rules: Sequence[Parsed], tokens: Iterable[re.Match[str]]) -> None:
        """What is empty stays: that there is nothing says nothing about anybody, and is often what is wrong."""
        mark = token[0]
        if mark not in _OPENS:
            if mark not in _EMPTY:
                text = string(mark) if mark[0] == '"' else mark
                self._replace(token.start(), token.end(), self._mask(Found(rules, text, (text,))), text)
            return
        inside, end = _inside(tokens)
        if inside:
            self._replace(token.start(), end, self._mask(Found(rules, None, inside)))

    def _change(self, token: re.Match[str], mark: str) -> None:
        if self._scrub is None:
            return
        text = string(mark) if mark[0] == '"' else mark
        if (scrubbed := self._scrub(text)) != text:
            self._replace(token.start(), token.end(), scrubbed)

    def _replace(self, start: int, end: int, text: str, was: str | None = None) -> None:
        if text != was:
            self._edits.append((start, end, quoted(text)))

    def _edited(self) -> str:
        parts, at = [], 0
        for start, end, text in self._edits:
            parts += [self._text[at:start], text]
            at = end
        return "".join([*parts, self._text[at:]])


def _inside(tokens: Iterable[re.Match[str]]) -> tuple[list[str], int]:
    """The values in the list or object that has just begun, and where it ends."""
    inside: list[str] = []
    depth, end, last = 1, 0, ""
    for token in tokens:
        mark, end = token[0], token.end()
        depth += (mark in _OPENS) - (mark in _CLOSES)
        if last and mark != ":" and last not in _EMPTY:  # a string with no colon behind it was a value
            inside.append(string(last))
        last = mark if mark[0] == '"' else ""
        if mark[0] not in '"{}[],:' and mark != "null":
            inside.append(mark)
        if depth == 0:
            break
    return inside, end


def string(token: str) -> str:
    """The text of a string."""
    return str(json.loads(token, strict=False)) if "\\" in token else token[1:-1]


def quoted(text: str) -> str:
    """The text as a string of JSON."""
    try:
        return msgspec.json.encode(text).decode()
    except UnicodeEncodeError:
        return json.dumps(text)


def redacted(text: str, paths: Paths, mask: Mask, scrub: Scrub | None) -> str:
    """The JSON text with `mask` in place of what rules hit, and all other strings, names and numbers as `scrub` has them."""
    return _Walk(text, paths, mask, scrub).redacted()
