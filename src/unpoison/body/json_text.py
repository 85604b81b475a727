"""Finds what in the text of a body a handler must not meet, and explains why it is not JSON.

Cheap bounds first; only a body that exceeds one is looked at exactly. Diagnoses are made for bodies that are refused.
"""

import re
import reprlib
from array import array
from contextlib import suppress
from itertools import accumulate
from math import isinf

import msgspec

from unpoison.model.failure import summary, text_of
from unpoison.model.wording import counted

LOWEST, HIGHEST = -(2**63), 2**64 - 1
TEXT_LIMIT = 500

# Digits as 0, a minus as itself, all else blank: where a long integer may be, in one pass over the body.
SHAPES = bytes(ord("0") if chr(byte) in "0123456789" else byte if byte == ord("-") else ord(" ") for byte in range(256))
NINETEEN, _TWENTY = b"0" * 19, b"0" * 20  # the digits of the shortest integers below -2**63 and above 2**64 - 1
_RUN = re.compile(rb"[0-9]+")
# A string without an end reaches up to the end of the body, or each of its quotes would be searched for one again.
_TOKEN = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|(-?[0-9]++)(?![.eE])|(-?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)', re.DOTALL
)

# Opening brackets as 1, closing ones as -1 (255 in a signed byte); what is neither a bracket nor a quote is left out.
_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else byte for byte in range(256))
_NO_STEP = bytes(byte for byte in range(256) if byte not in b'[{]}"')

_BEGINNINGS = (
    (b"\xef\xbb\xbf", "a UTF-8 byte order mark"),
    (b"\xff\xfe\0\0", "the byte order mark of UTF-32"),
    (b"\0\0\xfe\xff", "the byte order mark of UTF-32"),
    (b"\xff\xfe", "the byte order mark of UTF-16"),
    (b"\xfe\xff", "the byte order mark of UTF-16"),
    (b"\x1f\x8b", "the mark of gzip data"),
    (b"\x28\xb5\x2f\xfd", "the mark of zstd data"),
)
_WIDE_CODECS = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")

_parse = msgspec.json.Decoder().decode


class Unfit(Exception):
    """Why a body never reached the handler.

    `rule` is one of: too-large, encoding, not-json, too-deep, integer-range, float-range, schema, tombstone. `text` is one
    sentence for people, short enough never to hold a whole payload.
    """

    def __init__(self, rule: str, text: str) -> None:
        self.rule, self.text = rule, one_line(text)
        super().__init__(self.rule, self.text)

    def __str__(self) -> str:
        return self.text


def wide_integer(body: bytes) -> re.Match[bytes] | None:
    """The first integer in a JSON text that does not fit into 64 bits, signed or unsigned."""
    shapes = body.translate(SHAPES)
    if not (shapes.partition(_TWENTY)[1] or shapes.partition(b"-" + NINETEEN)[1]):
        return None
    start = shapes.find(NINETEEN)
    while start >= 0 and (run := _RUN.match(body, start)):
        if _is_wide(body[start - (shapes[start - 1 : start] == b"-") : run.end()]):  # or a long text or fraction: look exactly
            return next((token for token in _TOKEN.finditer(body) if token[1] and _is_wide(token[1])), None)
        start = shapes.find(NINETEEN, run.end())
    return None


def _is_wide(digits: bytes) -> bool:
    return len(digits) > 20 or not LOWEST <= int(digits) <= HIGHEST


def nesting(body: bytes) -> int:
    """How many arrays and objects are open at the deepest place. Brackets inside of strings do not count."""
    if body.partition(b"\\")[1]:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left of the quotes begins or ends a string
    # Removing neighbours in pairs keeps every other byte on its side of the quotes, inside or outside.
    steps = body.translate(_STEPS, _NO_STEP).replace(b'""', b"")
    if steps.partition(b'"')[1]:
        steps = b"".join(steps.split(b'"')[::2])
    left = steps
    for depth in range(64):  # each round takes the innermost pairs away: a wide body is gone after a few
        if not left:
            return depth
        left = left.replace(b"\x01\xff", b"")
    return max(accumulate(array("b", steps), initial=0))


def too_large(size: int, limit: int) -> Unfit:
    return Unfit("too-large", f"the body has {counted(size, 'byte')}, the limit is {limit:,}")


def too_deep(body: bytes, max_depth: int) -> Unfit | None:
    depth = nesting(body)
    if depth <= max_depth:
        return None
    return _encoding(body) or Unfit("too-deep", f"the body is nested {depth:,} levels deep, the limit is {max_depth:,}")


def too_wide(token: re.Match[bytes]) -> Unfit:
    return Unfit("integer-range", f"integer {_digits(token)} at byte {token.start()} does not fit into 64 bits")


def _out_of_range(body: bytes) -> Unfit | None:
    if wide := wide_integer(body):
        return too_wide(wide)
    for token in _TOKEN.finditer(body):
        if token[2] and isinf(float(token[2])):
            return Unfit("float-range", f"number {_digits(token)} at byte {token.start()} is beyond the range of a float")
    return None


def _digits(token: re.Match[bytes]) -> str:
    return reprlib.repr(token[0].decode()).strip("'")


def why_not(body: bytes, error: Exception) -> Unfit:
    """Why a parser refused this body. One cause hides the next: JSON in UTF-16 is not JSON, and what is not JSON fits nothing."""
    if unfit := _encoding(body):
        return unfit
    text, begins = text_of(error), f"the body begins {body[:40]!r}"
    if not body.strip():
        return Unfit("not-json", f"the body is blank ({counted(len(body), 'byte')}), and JSON needs a value")
    if isinstance(error, msgspec.ValidationError):
        unfit = _out_of_range(body) if text.startswith(("Number out of range", "Integer value out of range")) else None
        return unfit or Unfit("schema", f"{text}; {begins}")
    if isinstance(error, msgspec.DecodeError):
        return Unfit("not-json", f"{text}; {begins}")
    if isinstance(error, RecursionError) and nesting(body) > 64:
        return Unfit("too-deep", f"the body is nested {nesting(body):,} levels deep, more than can be decoded")
    return Unfit("schema", f"{summary(error)}; {begins}")


def _encoding(body: bytes) -> Unfit | None:
    """What else than UTF-8 the body is written in, as far as it can be told."""
    for mark, meaning in _BEGINNINGS:
        if body.startswith(mark):
            return Unfit("encoding", f"the body begins with {mark!r}, {meaning}, and is not JSON in UTF-8")
    for codec in _WIDE_CODECS if body.partition(b"\0")[1] else ():
        with suppress(Exception):
            _parse(body.decode(codec))
            return Unfit("encoding", f"the body is JSON in {codec.upper()}, and must be UTF-8")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return not_utf8(body, error.start)
    return None


def not_utf8(body: bytes, at: int) -> Unfit:
    found = f"byte 0x{body[at]:02x} at offset {at} is not UTF-8 (in Latin-1 it is {chr(body[at])!r})"
    return Unfit("encoding", f"{found}, near {body[max(0, at - 20) : at + 20]!r}")


def one_line(text: str) -> str:
    """Both ends of a long text, since the first words name and the last ones explain."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    half = TEXT_LIMIT // 2 - 2
    return line if len(line) <= TEXT_LIMIT else f"{line[:half]} … {line[-half:]}"
