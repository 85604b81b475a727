"""Which messages are in the arguments, in a file or on standard input?

JSON lines unless told otherwise. Input is read in batches, as it comes: what `tail -f` gives is sent at once, a large file in
steps of a megabyte. A batch is checked as a whole before it is sent, a file before any of it is.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import click

CHUNK = 1024 * 1024

Batch = Sequence[bytes]

Form = Callable[[Sequence[bytes], int], Batch]
"""How lines become messages; told the number of the first line, for its error."""


class NotJSON(click.ClickException):
    """Something that was to be JSON is not."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} is not JSON: {why}. Mend it, or send it as it is with --raw or --lines.")


def json_lines(lines: Sequence[bytes], first: int) -> Batch:
    """Every line as it is, once all of them are found to be JSON. Empty lines are left out."""
    found = [(number, line.strip()) for number, line in enumerate(lines, first) if line.strip()]
    for number, line in found:
        _check(line, f"Line {number:,}")
    return [line for _, line in found]


def raw_lines(lines: Sequence[bytes], _first: int) -> Batch:
    """Every line as it is, whatever it holds."""
    return lines


def arguments(payloads: Sequence[str], *, as_they_are: bool) -> Batch:
    """One message for each argument, in the bytes that the shell gave us."""
    bodies = [os.fsencode(payload) for payload in payloads]
    if not as_they_are:
        for number, body in enumerate(bodies, 1):
            _check(body, f"Payload {number:,} ({payloads[number - 1]!r:.60})")
    return bodies


def batches(stream: BinaryIO, form: Form) -> Iterator[tuple[int, Batch]]:
    """(bytes read so far, messages) until the input ends."""
    rest, line, read = b"", 1, 0
    while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]  # typeshed knows it for files and pipes only
        read += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield read, form(lines, line)
            line += len(lines)
    if rest:
        yield read, form([rest], line)


def check_file(path: Path, form: Form) -> None:
    """Read all of it once, so that nothing of a file with a bad line is sent."""
    with path.open("rb") as stream:
        for _ in batches(stream, form):
            pass


def _check(body: bytes, where: str) -> None:
    try:
        _DECODER.decode(body.decode())
    except UnicodeDecodeError as error:
        raise NotJSON(where, f"byte {error.start:,} is no UTF-8") from None
    except RecursionError:
        raise NotJSON(where, "it is nested too deep") from None
    except ValueError as error:
        raise NotJSON(where, str(error)) from None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


# Numbers are kept as text: only the form is looked at, and an integer of a million digits is form enough.
_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_int=str, parse_float=str)
