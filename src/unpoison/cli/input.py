"""Which messages are in the arguments, in a file or on standard input?

JSON lines unless told otherwise. Input is read in batches, as it comes: what `tail -f` gives is sent at once, a large file in
steps of a megabyte. A batch is checked as a whole before it is sent, a file before any of it is.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click

from unpoison.body.payload import why_unsendable

CHUNK = 1024 * 1024


class Item(NamedTuple):
    """One message, and where it stood: the number of its line, or of its argument."""

    number: int
    body: bytes


Batch = Sequence[Item]

Form = Callable[[Sequence[bytes], int], Batch]
"""How lines become messages; told the number of the first line, for its error."""


class NotJSON(click.ClickException):
    """Something that was to be JSON is not, or consumers would refuse it."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} {why.rstrip('.')}. Fix it, or send it as it is with --raw or --lines.")


def json_lines(lines: Sequence[bytes], first: int) -> Batch:
    """Every line as it is, once all of them are found to be JSON. Empty lines are left out."""
    found = [Item(number, line.strip()) for number, line in enumerate(lines, first) if line.strip()]
    for number, line in found:
        _check(line, f"Line {number:,}")
    return found


def raw_lines(lines: Sequence[bytes], first: int) -> Batch:
    """Every line as it is, whatever it holds."""
    return [Item(number, line) for number, line in enumerate(lines, first)]


def items_of(payloads: Sequence[str], *, as_they_are: bool) -> Batch:
    """One message for each argument, in the bytes that the shell gave us."""
    items = [Item(number, os.fsencode(payload)) for number, payload in enumerate(payloads, 1)]
    if not as_they_are:
        for number, body in items:
            _check(body, f"Payload {number:,} ({payloads[number - 1]!r:.60})")
    return items


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
    if why := why_unsendable(body):
        raise NotJSON(where, why)
