"""Which values are redacted, and what becomes of them?

A rule is a `Redact`, or the same as text: `body.customer.email`, `drop body.card.cvv`, `searchable header.x-user`,
`pattern:email`. `unpoison.redaction.walking` follows paths into bodies, `unpoison.redaction.patterns` finds what has a form.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias, get_args

from unpoison.errors import ConfigError
from unpoison.model.wording import one_line, pointed_at
from unpoison.redaction.patterns import NAMED, Pattern, pattern_of

Action = Literal["encrypt", "drop"]
Place = Literal["body", "header", "key", "pattern"]
EXAMPLES = "body.customer.email, body.items[].name, header.authorization, key or pattern:email"

_WORDS = (*get_args(Action), "searchable")
_BEGINS = r"(?:(?:encrypt|drop|searchable)\s+)*(?:body\b|header\.|key\b|pattern:|@)"
_BETWEEN = re.compile(rf"\s*[,\n]\s*(?={_BEGINS})")
_STEP = re.compile(r"""\.(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s."()\[\]]+))|\[(?P<number>[0-9]*|\*)\]""")


@dataclass(frozen=True, slots=True)
class Wildcard:
    """`*`: any member or element. `is_deep`: `**`, any number of them."""

    is_deep: bool = False


ANY, DEEP = Wildcard(), Wildcard(True)
Step: TypeAlias = str | int | Wildcard


@dataclass(frozen=True, slots=True)
class Redact:
    """A rule: what stands at `path` is not shown in the store.

    - `action`: "encrypt" keeps the whole letter encrypted as well, so that it can be revealed and replayed; "drop" keeps what it
      hits nowhere, and so not the original of that letter.
    - `searchable`: letters can still be found by the exact value, through a keyed hash.
    """

    path: str
    action: Action = "encrypt"
    searchable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise ConfigError(f"The path of a rule is a text such as {EXAMPLES}, got {self.path!r}.")
        if self.action not in get_args(Action):
            raise ConfigError(
                f"Redact({self.path!r}): action is 'encrypt' (the original is kept encrypted) or 'drop' (it is not kept), got "
                f"{self.action!r}."
            )
        parsed(self)  # what cannot be read is an error where it is written

    def __str__(self) -> str:
        words = [*(["drop"] if self.action == "drop" else []), *(["searchable"] if self.searchable else [])]
        return " ".join([*words, self.path])


@dataclass(frozen=True, slots=True)
class Parsed:
    """A rule that was read: the place, and its steps (of a header its name) or its pattern."""

    rule: Redact
    place: Place
    steps: tuple[Step, ...] = ()
    pattern: Pattern | None = None

    @property
    def last_name(self) -> str | None:
        """A name that must stand in every body that this rule hits; None if that cannot be told."""
        names = [step for step in self.steps if isinstance(step, str)]
        return names[-1].lower() if names and re.fullmatch(r"[A-Za-z0-9_-]+", names[-1]) else None


Given: TypeAlias = "str | Redact"


def rules_from(given: Iterable[Given]) -> tuple[Redact, ...]:
    """The rules, each once. A text may have several, with commas or line ends between them, or name a file: @rules.txt."""
    found: list[Redact] = []
    for each in given:
        if isinstance(each, Redact):
            found.append(each)
        elif isinstance(each, str):
            found += [rule for part in _parts(each) for rule in _of_part(part)]
        else:
            raise ConfigError(f"redact takes rules such as {EXAMPLES!r}, got {each!r}.")
    return tuple(dict.fromkeys(found))


def _parts(text: str) -> list[str]:
    return [part for part in (each.strip() for each in _BETWEEN.split(text)) if part]


def _of_part(text: str) -> Sequence[Redact]:
    return _of_file(text[1:]) if text.startswith("@") else [rule_of(text)]


def _of_file(name: str) -> list[Redact]:
    """One rule on each line; what begins with # is a comment."""
    try:
        lines = Path(name).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The rules for redaction in {name!r} cannot be read: {error}. Without them letters would be stored as they are, so "
            f"nothing is."
        ) from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.strip().startswith("#"):
            try:
                found.append(rule_of(line.strip()))
            except ConfigError as error:
                raise ConfigError(f"{name}, line {number}: {error}") from None
    return found


def rule_of(text: str) -> Redact:
    """A rule from its text."""
    words, rest = set[str](), text.strip()
    while (word := rest.split(None, 1)) and word[0] in _WORDS and len(word) == 2:
        words.add(word[0])
        rest = word[1]
    if {"encrypt", "drop"} <= words:
        _fail(text, 0, len(text), "A rule either encrypts or drops")
    return Redact(rest, "drop" if "drop" in words else "encrypt", "searchable" in words)


@lru_cache(maxsize=1_000)
def parsed(rule: Redact) -> Parsed:
    path = rule.path
    place, rest = _place(path)
    if place == "pattern":
        try:
            return Parsed(rule, place, pattern=pattern_of(rest))
        except ValueError as error:
            _fail(path, len("pattern:"), len(path), str(error))
    steps = _steps(path, len(path) - len(rest))
    if place == "key" and steps:
        _fail(path, 3, len(path), "The key of a message has nothing inside")
    if place == "header" and (len(steps) != 1 or not isinstance(steps[0], str | Wildcard)):
        _fail(path, 6, len(path), "Which header? Write its name behind a dot, header.authorization, or header.* for all")
    if steps and steps[-1] == DEEP:
        _fail(path, len(path) - 2, len(path), "What comes behind **? Write body.**.password, or body for all of it")
    return Parsed(rule, place, steps)


def _place(path: str) -> tuple[Place, str]:
    for place in get_args(Place):
        begin = "pattern:" if place == "pattern" else place
        if path.startswith(begin) and (place == "pattern" or path[len(begin) : len(begin) + 1] in ("", ".", "[")):
            return place, path[len(begin) :]
    return _no_place(path)


def _no_place(path: str) -> NoReturn:
    named = f", and {path!r} is the name of a pattern: pattern:{path}" if path in NAMED else ""
    _fail(path, 0, len(re.split(r"[.\[: ]", path)[0]), f"A rule begins with body, header, key or pattern:{named}")


def _steps(path: str, at: int) -> tuple[Step, ...]:
    found: list[Step] = []
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            _fail(
                path, at, len(path), 'This is no step of a path. Write .name, ."a name", [0], [] or .* for any, .** for any depth'
            )
        found.append(_step(step))
        at = step.end()
    return tuple(found)


def _step(step: re.Match[str]) -> Step:
    if step["number"] is not None:
        return int(step["number"]) if step["number"].isdecimal() else ANY
    if step["quoted"] is not None:
        return re.sub(r"\\(.)", r"\1", step["quoted"], flags=re.DOTALL)
    return {"*": ANY, "**": DEEP}.get(step["plain"], step["plain"])


def _fail(text: str, start: int, end: int, problem: str) -> NoReturn:
    shown = pointed_at(text, start, end) if len(text) < 400 else one_line(text, 80)
    raise ConfigError(f"A rule for redaction cannot be read. {problem}. For example: {EXAMPLES}\n{shown}")
