"""Which blocks does a page have, and what is each of them?

- ```python is a program. It is saved as shop.py and run; after <!-- file: name.py --> it is saved under that name and imported.
- ```console shows a session: commands after "$ ", and below each what it writes. "…" stands for anything, within a line or as
  a line of its own; "^C" is Ctrl-C. A command that ends in "&" runs in the background until the page ends.
  <!-- exit: 1 --> before the block says that its last command fails. A free port stands for 8099.
- ```shell has a command in each line. So has a block that is only indented, as README has them.
- ```text and other data are shown only; after <!-- file: name --> they are saved. So is ```sql: it is for a person at a
  server, and what unpoison does to a server is tested with that server.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

SHOWN_ONLY = ("text", "ini", "json", "toml", "yaml", "sql", "promql")
KNOWN = ("python", "console", "shell", *SHOWN_ONLY)

_FENCE = re.compile(r"^(?P<margin> *)(?P<ticks>`{3,})(?P<language>[\w-]*)[^`]*$")
_NOTE = re.compile(r"<!-- (?P<name>file|exit): (?P<value>\S+) -->")


@dataclass(frozen=True)
class Block:
    """A block of a page, with the line it begins at and the note that stands before it."""

    line: int
    language: str
    lines: Sequence[str]
    file: str | None = None
    exit_code: int = 0

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True)
class Command:
    """A command and the lines that the page shows below it."""

    line: int
    text: str
    shown: list[str] = field(default_factory=list)
    exit_code: int = 0


def blocks(text: str) -> Iterator[Block]:
    """All blocks of a page, in order."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence:
            end = next(at for at in range(number + 1, len(lines)) if lines[at].strip() == fence["ticks"])
            inside = [line[len(fence["margin"]) :] for line in lines[number + 1 : end]]
            yield Block(number + 1, fence["language"], inside, **_note(lines, number))
            number = end + 1
        elif _is_indented(lines, number):
            end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block(number + 1, "shell", [line.strip() for line in lines[number:end] if line.strip()])
            number = end
        else:
            number += 1


def commands(block: Block) -> list[Command]:
    """What a console or shell block runs."""
    if block.language == "shell":
        return [Command(block.line, line) for line in block.lines if line.strip()]
    found: list[Command] = []
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            found.append(Command(number, line[2:]))
        elif line.startswith("> ") and found and found[-1].text.endswith("\\"):
            found[-1] = Command(found[-1].line, f"{found[-1].text}\n{line[2:]}")
        elif found:
            found[-1].shown.append(line)
        else:
            raise AssertionError(f"line {number}: a console block begins with a command after '$ ', not with {line!r}")
    if found:
        found[-1] = Command(found[-1].line, found[-1].text, found[-1].shown, block.exit_code)
    return found


def _note(lines: Sequence[str], fence: int) -> dict[str, str | int]:
    above = next((line for line in reversed(lines[:fence]) if line.strip()), "")
    note = _NOTE.fullmatch(above.strip())
    if not note:
        return {}
    return {"file": note["value"]} if note["name"] == "file" else {"exit_code": int(note["value"])}


def _is_indented(lines: Sequence[str], number: int) -> bool:
    """Four spaces after an empty line make a block, unless they continue a list or a note."""
    if not lines[number].startswith("    ") or (number and lines[number - 1].strip()):
        return False
    before = next((line for line in reversed(lines[:number]) if line.strip() and not line.startswith(" ")), "")
    return not re.match(r"([-*+]|\d+\.|!!!|\?\?\?|===) ", before)
