"""What does a dead letter look like without what rules name?

First what the rules mean is found: in the body, the headers and the key. Then the same values are looked for in everything else
that the letter says: exceptions quote what they fail on. Nothing is raised, whatever a letter holds: what cannot be looked into
is redacted as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.message import Message, as_text
from unpoison.redaction import walking
from unpoison.redaction.keys import Key
from unpoison.redaction.markers import MASKED, between, is_marker, with_token
from unpoison.redaction.occurrences import LEAST_ELSEWHERE, Occurrences
from unpoison.redaction.patterns import NAMED
from unpoison.redaction.rules import ANY, Parsed, Redact, parsed
from unpoison.redaction.walking import Found, Paths

_TEXTS = ("error_type", "error", "rule", "reason", "traceback", "note", "owner")
_ABOUT_BODY = ("error", "reason", "traceback")
"""What may quote a body that cannot be looked into."""
_MASKED_BODY = f'"{MASKED}"'.encode()


class Redacted(NamedTuple):
    """A letter without what rules name. `hits` are the rules that found something; `drops` if one of them keeps nothing."""

    whole: WholeLetter
    hits: tuple[str, ...]
    drops: bool

    @property
    def is_changed(self) -> bool:
        return bool(self.hits)


class Redactor:
    """Redacts letters by these rules. `key` is for those that are searchable."""

    def __init__(self, rules: Iterable[Redact], key: Key | None) -> None:
        self.rules = tuple(rules)
        self._key = key
        found = [parsed(rule) for rule in self.rules]
        self.body = Paths(rule for rule in found if rule.place == "body")
        self.headers = [rule for rule in found if rule.place == "header"]
        self.keys = [rule for rule in found if rule.place == "key"]
        self.patterns = [rule for rule in found if rule.place == "pattern"]

    def redacted(self, whole: WholeLetter) -> Redacted:
        return _OneLetter(self).redacted(whole)

    def token(self, rule: Redact, value: str) -> str:
        return "" if self._key is None else self._key.token(rule.path, folded(value))


def folded(value: str) -> str:
    """As filters compare values: A to Z as a to z."""
    return value if not value.isascii() else value.lower()


class _OneLetter:
    """What is found in one letter."""

    def __init__(self, rules: Redactor) -> None:
        self._rules = rules
        self._values: list[str] = []
        self._hits: dict[Redact, None] = {}
        self._is_opaque = False
        self._patterns: Sequence[Parsed] = rules.patterns
        self._near, self._far = Occurrences(()), Occurrences(())

    def redacted(self, whole: WholeLetter) -> Redacted:
        message = whole.letter.message
        body = self._body(message)
        key = self._key_of(message)
        headers = self._headers(message.headers)
        self._find_in_native(whole.headers)
        self._near, self._far = Occurrences(self._values), Occurrences(self._values, LEAST_ELSEWHERE)
        letter = self._letter(whole.letter, Message(message.id, message.source, body, key, headers, message.is_tombstone))
        if not self._hits:
            return Redacted(whole, (), drops=False)
        return self._result(whole, letter)

    def _result(self, whole: WholeLetter, letter: DeadLetter) -> Redacted:
        has_identity = whole.has_identity
        if letter.id == MASKED:
            has_identity = False
        cleared = msgspec.structs.replace(whole, letter=letter, headers=(), native=None, has_identity=has_identity)
        drops = any(rule.action == "drop" for rule in self._hits)
        return Redacted(cleared, tuple(rule.path for rule in self._hits), drops)

    # The body

    def _body(self, message: Message) -> bytes:
        rules = self._rules
        if not message.body or not (rules.body.rules or rules.patterns):
            return message.body
        text = _text(message.body)
        is_json = text is not None and walking.is_json(message.body)
        if text is not None and is_json:
            self._patterns = [rule for rule in rules.patterns if _may_be_in(rule, text)]
            if self._may_have(text):
                text = walking.redacted(text, rules.body, self._mask, self._by_pattern if self._patterns else None)
            self._patterns = rules.patterns
            return text.encode("utf-8", "surrogatepass")
        if text is None or rules.body.rules:
            return self._opaque()
        return self._by_pattern(text).encode("utf-8", "surrogatepass")

    def _may_have(self, text: str) -> bool:
        """Whether it has to be gone through at all: most rules name a member that stands in few bodies."""
        if self._patterns or "\\u" in text:
            return True
        names = [rule.last_name for rule in self._rules.body.rules]
        lower = text.lower()
        return any(name is None or name in lower for name in names)

    def _opaque(self) -> bytes:
        """What cannot be looked into is redacted as a whole, and so is all that may quote it."""
        self._is_opaque = True
        self._hits |= dict.fromkeys(each.rule for each in (*self._rules.body.rules, *self._rules.patterns))
        return _MASKED_BODY

    # Finding

    def _mask(self, found: Found) -> str:
        if found.text is not None and is_marker(found.text):
            return found.text
        self._hits |= dict.fromkeys(each.rule for each in found.rules)
        self._values += [text for text in found.inside if not is_marker(text)]
        return MASKED if found.text is None else self._marker(found.rules, found.text)

    def _marker(self, rules: Sequence[Parsed], value: str) -> str:
        searchable = next((each.rule for each in rules if each.rule.searchable), None)
        token = self._rules.token(searchable, value) if searchable else ""
        return with_token(token) if token else MASKED

    def _by_pattern(self, text: str) -> str:
        return between(text, self._without_patterns) if self._patterns and text else text

    def _without_patterns(self, text: str) -> str:
        for each in self._patterns:
            assert each.pattern is not None  # noqa: S101 - for the type checker
            for start, end in reversed(each.pattern.in_text(text)):
                value = text[start:end]
                if not is_marker(value):
                    self._hits[each.rule] = None
                    self._values.append(value)
                    text = text[:start] + self._marker([each], value) + text[end:]
        return text

    def _key_of(self, message: Message) -> str | None:
        if not message.key or not self._rules.keys:
            return message.key
        return self._mask(Found(self._rules.keys, message.key, (message.key,)))

    def _headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        if not headers:
            return headers
        return {name: self._header(name, value) for name, value in headers.items()}

    def _header(self, name: str, value: str) -> str:
        rules = [rule for rule in self._rules.headers if rule.steps[0] == ANY or str(rule.steps[0]).lower() == name.lower()]
        return self._mask(Found(rules, value, (value, *_parts(value)))) if rules and value else value

    def _find_in_native(self, headers: Sequence[tuple[str, Any]]) -> None:
        """The headers as the broker has them: those of one name are all there. They are not kept, but their values are known."""
        for name, value in headers:
            self._by_pattern(self._header(as_text(name), as_text(value)))

    # Everything else that the letter says

    def _letter(self, letter: DeadLetter, message: Message) -> DeadLetter:
        changed: dict[str, Any] = {name: self._said(getattr(letter, name)) for name in _TEXTS}
        if self._is_opaque:
            changed |= {name: MASKED for name in _ABOUT_BODY if getattr(letter, name)}
        changed["original"] = {
            self._said(name): self._said(value) if isinstance(value, str) else value for name, value in letter.original.items()
        }
        if letter.crash is not None:
            log, stack = (
                MASKED if self._is_opaque and text else self._said(text) for text in (letter.crash.log, letter.crash.stack)
            )
            changed["crash"] = msgspec.structs.replace(letter.crash, log=log, stack=stack)
        changed["history"] = tuple(
            msgspec.structs.replace(past, error=MASKED if self._is_opaque and past.error else self._said(past.error))
            for past in letter.history
        )
        changed["message"] = self._message(message)
        changed["id"] = self._id(letter.id)
        if any(
            changed.get(name, letter.crash) != getattr(letter, name) for name in ("error_type", "error", "traceback", "crash")
        ):
            changed["fingerprint"] = ""  # it was made of them, so it could be tried out
        return msgspec.structs.replace(letter, **changed)

    def _message(self, message: Message) -> Message:
        headers = message.headers
        if headers:
            headers = {self._said(name): self._elsewhere(value) for name, value in headers.items()}
        key = None if message.key is None else self._elsewhere(message.key)
        return Message(self._id(message.id), message.source, self._rest_of_body(message), key, headers, message.is_tombstone)

    def _rest_of_body(self, message: Message) -> bytes:
        """The values that were found may stand in other members too."""
        text = _text(message.body) if self._far else None
        if text is None or self._far.masked(text) == text:
            return message.body
        if walking.is_json(message.body):
            return walking.redacted(text, Paths(()), self._mask, self._far.masked).encode("utf-8", "surrogatepass")
        return self._far.masked(text).encode("utf-8", "surrogatepass")

    def _elsewhere(self, text: str) -> str:
        return self._far.masked(self._by_pattern(text))

    def _said(self, text: Any) -> Any:
        return self._near.masked(self._by_pattern(text)) if text else text

    def _id(self, id_: str) -> str:
        """Ids tell letters apart, so one with a value in it is replaced as a whole, by a keyed hash where there is a key."""
        if self._elsewhere(id_) == id_:
            return id_
        token = self._rules.token(Redact("key"), id_)
        return with_token(token) if token else MASKED


def _may_be_in(rule: Parsed, text: str) -> bool:
    """Whether the pattern may be in a string of this JSON: there a letter may be written with a backslash, and an expression of
    the user's may ask where a string begins."""
    pattern = rule.pattern
    return pattern is None or pattern not in NAMED.values() or "\\" in text or pattern.may_be_in(text)


def _text(body: bytes) -> str | None:
    """A body that can be looked into: with a NUL it may be text in another encoding."""
    if b"\0" in body:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _parts(value: str) -> list[str]:
    """What a header such as `Bearer abc` is made of."""
    return [part for part in value.replace(";", " ").replace(",", " ").split() if len(part) >= 8] if " " in value else []
