"""Which failures are alike?

A fingerprint is a short key that is equal for failures of one cause: the type of the exception, where in the user's code it was
raised, and its text without the values of one message. It is made from texts alone, those that a dead letter has, so a stored
letter gets its fingerprint as a new failure does. docs/dead-letters.md says what falls together.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from unpoison.model import error_text, traceback_text
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.error_text import words
from unpoison.model.failure import CHAIN_LIMIT, Crash, Failure
from unpoison.model.frames import Whose, of_user, whose
from unpoison.model.traceback_text import MORE, Frame, Raised

VERSION = 2
"""Goes up when equal failures get other fingerprints than before. Those of the first version have no number."""

_FORM = re.compile(r"(\d{1,4})-[0-9a-f]{12}")
_MOST_PARTS = 20
_SUFFIX = re.compile(r"\.py[cow]?$")
_CHANGING = re.compile(r"\d{4,}|(?<=-input)-\d.*")
"""In the names of files that are made for one run."""

_WITHOUT_TEXT = words(
    """RecursionError ZeroDivisionError MemoryError UnicodeDecodeError UnicodeEncodeError json.decoder.JSONDecodeError
    requests.exceptions.JSONDecodeError simplejson.errors.JSONDecodeError orjson.JSONDecodeError msgspec.DecodeError"""
)
"""Their texts say at which byte or in which call it happened to be, or differ between versions of Python."""

_PYDANTIC = "pydantic_core._pydantic_core.ValidationError"
_PYDANTIC_KIND = re.compile(r"\[type=(\w+)")
_BY_SOURCE = {
    "unpoison.Timeout": "timeout",
    "unpoison.ConsumerVanished": "lost",
    "unpoison.AttemptsUsedUp": "used-up",
    "unpoison.Interrupted": "interrupted",
}
_ABOUT_BODIES = words("too-large encoding not-json too-deep integer-range float-range")
"""Rules whose texts say no more than where in the body, and how much."""
_COMPLAINT = re.compile(r"at (\$[^\s:]*+): (.*)", re.DOTALL)
_OF_JSON_SCHEMA = re.compile(
    r" (?:is not of type|is a required property|is less than|is greater than|does not match|is too short|is too long"
    r"|is not one of|was expected|is not valid under any|is valid under each|is not a multiple|has non-unique|should be non-empty"
    r"|should not be valid|does not contain|does not have enough|has too many|is a dependency of|expected at most)"
)
_REQUIRED = re.compile(r"'([^']{1,80})' is a required property")


def of_failure(failure: Failure, source: str) -> str:
    of = _of if failure.crash is not None else _of_one_of_many
    return of(source, failure.type_name, failure.text, failure.traceback, failure.crash, failure.rule)


def of_letter(letter: DeadLetter) -> str:
    return _of(letter.source, letter.error_type, letter.error, letter.traceback, letter.crash, letter.rule)


def marked(failure: Failure, source: str) -> Failure:
    """The failure with its fingerprint; one that has one keeps it."""
    return failure if failure.fingerprint else msgspec.structs.replace(failure, fingerprint=of_failure(failure, source))


def renewed(letter: DeadLetter) -> DeadLetter:
    """The letter with a fingerprint of this version: it may have been written before, or by another program. One of a newer
    version stays as it is."""
    if is_of_this_version(letter.fingerprint):
        return letter
    return msgspec.structs.replace(letter, fingerprint=of_letter(letter))


def is_of_this_version(fingerprint: str) -> bool:
    """Or of a newer one."""
    found = _FORM.fullmatch(fingerprint)
    return found is not None and int(found[1]) >= VERSION


def _of(source: str, kind: str, text: str, traceback: str, crash: Crash | None, rule: str) -> str:
    """Never raises: a fault in here must cost neither a worker nor a look at a DLQ."""
    try:
        key = "\x1f".join(_key(source, kind, text, traceback, crash, rule))
    except Exception:
        key = f"{kind}\x1f{source}"
    return f"{VERSION}-{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


_of_one_of_many = lru_cache(maxsize=100)(_of)
"""In an outage thousands of messages fail with the same text in the same place."""


def _key(source: str, kind: str, text: str, traceback: str, crash: Crash | None, rule: str) -> Iterable[str]:
    """What is compared. The source stands in for a place in the code where there is none."""
    if form := _BY_SOURCE.get(kind):
        return [form, source]
    if kind == "unpoison.Unfit":
        return ["invalid", source, *_misfit(text, rule.removeprefix("invalid: "))]
    if kind == "unpoison.Unreadable":
        return ["unreadable", source, error_text.gist(text)]
    if crash is not None or kind == "unpoison.WorkerDied":
        return _of_crash(source, text, traceback, crash or Crash())
    return _of_exception(source, kind, "" if text == rule else text, traceback)


def _of_crash(source: str, text: str, traceback: str, crash: Crash) -> Sequence[str]:
    """How the process ended, and the innermost frame of the user's code."""
    how = crash.signal or (error_text.gist(text) if crash.exit_code is None else f"exit code {crash.exit_code}")
    frames = traceback_text.read_stack(crash.stack or traceback)[::-1]
    places = _places(frames)
    return ["crash", how, places[-1] if places else source]


def _of_exception(source: str, kind: str, text: str, traceback: str) -> Iterable[str]:
    raised = traceback_text.read(traceback)
    yield "error"
    yield error_text.name(kind)
    yield _said(kind, text)
    yield from _where(raised, kind) or [source]
    yield from _inside(raised)


def _inside(raised: Raised) -> Iterable[str]:
    """The exceptions in a group, in no order and each kind of them once, and what a wrapper of the user's was raised from.

    What a library raises says itself what went wrong; what it was raised from is the library's own affair. An exception that
    the user's code raised from another one may wrap anything.
    """
    yield from _kinds(raised.parts, "\x1e", 3)
    for _ in range(CHAIN_LIMIT):
        if raised.cause is None or not _is_by_user(raised):
            return
        raised = raised.cause
        yield from ["from", *_of_part(raised)]


def _kinds(parts: Sequence[Raised], separator: str, depth: int) -> Iterable[str]:
    return sorted({separator.join(_of_part(part, depth)) for part in parts[:_MOST_PARTS] if part.line != MORE})


def _of_part(raised: Raised, depth: int = 3) -> Iterable[str]:
    kind, _, text = raised.line.partition(": ")
    kind = kind.removeprefix("builtins.")
    yield from [error_text.name(kind), _said(kind, text), *_where(raised, kind)]
    if depth:
        yield from _kinds(raised.parts, "\x1d", depth - 1)


def _is_by_user(raised: Raised) -> bool:
    return bool(raised.frames) and len(raised.frames) - 1 in of_user([frame.file for frame in raised.frames])


def _said(kind: str, text: str) -> str:
    if kind in _WITHOUT_TEXT:
        return ""
    return _of_pydantic(text) if kind == _PYDANTIC else error_text.gist(_first_lines(text), kind)


def _first_lines(text: str) -> str:
    """What comes further down is data more often than a reason."""
    return "\n".join(text[: error_text.READ].splitlines()[:4])


def _of_pydantic(text: str) -> str:
    """Model, path and kind of its first complaint."""
    title, path, *rest = [*text[: error_text.READ].splitlines(), "", ""][:4]
    kind = _PYDANTIC_KIND.search("\n".join(rest))
    return f"{title.rpartition(' for ')[2]} {error_text.path_in_data(path)} {kind[1] if kind else ''}"


def _misfit(text: str, rule: str) -> Sequence[str]:
    """Which rule it breaks, and if that is a schema, at which field and in what way."""
    if rule in _ABOUT_BODIES:
        return [rule]
    function, refused, error = text.partition(" refused it: ")
    if refused:
        kind, _, said = error.partition(": ")
        return ["schema", function, error_text.name(kind), _said(kind, said)]
    found = _COMPLAINT.match(text)
    if not found:
        return ["schema", error_text.gist(text)]
    complaint = found[2]
    if required := _REQUIRED.match(complaint):
        return ["schema", error_text.path_in_data(found[1]), required[0]]
    ends = list(_OF_JSON_SCHEMA.finditer(complaint))
    kind = complaint[ends[-1].start() :] if ends else complaint.rpartition(", got ")[0] or complaint
    return ["schema", error_text.path_in_data(found[1]), error_text.gist(kind.partition(" (")[0])]


def _where(raised: Raised, kind: str) -> Sequence[str]:
    """The innermost frame of the user's code, and which ones are around it.

    Their order does not count, nor how often one is there: a recursion has any depth and begins in any of its functions. Where
    one that is endless ends is chance, and so is what was called there.
    """
    frames = raised.frames
    if kind != "RecursionError":
        places = _places(frames)
        return [*places[-1:], *sorted({*places})]
    first = {frame: n for n, frame in reversed([*enumerate(frames)])}
    last = max((n for n, frame in enumerate(frames) if first[frame] < n), default=len(frames) - 1)
    return sorted({*_places(frames[: last + 1])})


def _places(frames: Sequence[Frame]) -> list[str]:
    """File and function of the frames of the user's code, outermost first; if there are none, of all frames but ours."""
    files = [frame.file for frame in frames]
    chosen = of_user(files) or [n for n, file in enumerate(files) if whose(file) is not Whose.OURS]
    return [f"{_module(frames[n].file)}:{frames[n].name}" for n in chosen]


def _module(file: str) -> str:
    """The name of the file: where it lies depends on the machine. `__init__` needs that of its package."""
    *_, folder, name = ["", *file.replace("\\", "/").split("/")]
    stem = _CHANGING.sub("", _SUFFIX.sub("", name))
    return f"{folder}/{stem}" if stem in ("__init__", "__main__") else stem
