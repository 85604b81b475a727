"""What does `unpoison demo` look like? Runs it on a terminal of its own and draws what was seen there: docs/images/demo.svg.

The picture plays like a film and holds its last frame, the account. It is one file without scripts or fonts from elsewhere,
has its own background, and shows the last frame alone where nothing may move. `make recording` runs this.
"""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

import pyte
from pyte.screens import Char

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
COMMAND = ("unpoison", "demo")
COLUMNS, LINES = 120, 60
MOST_FRAMES = 30
HOLD = 12.0
"""Seconds for which the last frame stays before the film begins again."""

LARGEST = 300_000
ADVANCE, LEADING, MARGIN, BAR = 8.43, 19, 16, 34
COLOURS = {
    "default": "#d6deeb",
    "black": "#7d8896",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#56d4dd",
    "white": "#ffffff",
    "brightblack": "#8b96a5",
}
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
FAINT = re.compile(rb"\x1b\[2m")

Line = tuple[Char, ...]
Frame = tuple[Line, ...]


@dataclass(frozen=True)
class Moment:
    """What stood on the terminal from this second on."""

    at: float
    frame: Frame


def record() -> list[Moment]:
    """Run the demo on a pseudo-terminal and note each picture that it shows."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[32m$\x1b[0m {' '.join(COMMAND)}\r\n".encode())
    moments = [Moment(0.0, _frame(screen))]
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (LINES, COLUMNS))
    began = time.monotonic()
    process = subprocess.Popen(COMMAND, stdin=slave, stdout=slave, stderr=slave, env=_environment())
    os.close(slave)
    for written in _written(master):
        stream.feed(FAINT.sub(b"\x1b[90m", written))  # the emulator knows no faint text
        moments.append(Moment(time.monotonic() - began, _frame(screen)))
    if process.wait() != 0:
        sys.exit(f"unpoison demo ended with status {process.returncode}; nothing was drawn.")
    return moments


def _environment() -> dict[str, str]:
    """A plain terminal, and the unpoison that belongs to this Python."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM", "COLUMNS", "LINES")}
    here = str(Path(sys.executable).parent)
    return inherited | {"PATH": f"{here}:{os.environ['PATH']}", "TERM": "xterm-256color", "TMPDIR": "/tmp"}  # noqa: S108


def _written(master: int) -> Iterator[bytes]:
    """What is written, in pieces that were written together: a picture is never noted half drawn."""
    piece = b""
    while True:
        is_more = bool(select.select([master], [], [], 0.02 if piece else None)[0])
        if not is_more:
            yield piece
            piece = b""
            continue
        try:
            piece += os.read(master, 65536)
        except OSError:  # how Linux says that the last one at the other end has gone
            break
    if piece:
        yield piece


def _frame(screen: pyte.Screen) -> Frame:
    return tuple(tuple(screen.buffer[y][x] for x in range(screen.columns)) for y in range(screen.lines))


def chosen(moments: Sequence[Moment]) -> list[Moment]:
    """A few of them, at even distances, with the first and the last."""
    changed = [moments[0], *(late for early, late in pairwise(moments) if late.frame != early.frame)]
    *film, last = changed
    step = last.at / MOST_FRAMES
    picked: list[Moment] = []
    for moment in film:
        if not picked or moment.at - picked[-1].at >= step:
            picked.append(moment)
    return [*picked, last]


def drawn(moments: Sequence[Moment]) -> str:
    """The film as SVG: all frames below each other, and a window that jumps from one to the next."""
    lines = max(_height(moment.frame) for moment in moments)
    height, width = lines * LEADING, round(COLUMNS * ADVANCE)
    total = moments[-1].at + HOLD
    jumps = "".join(
        f"{moment.at / total:.3%}{{transform:translateY({-number * height}px)}}" for number, moment in enumerate(moments)
    )
    frames = "".join(_drawn_frame(moment.frame, number * height) for number, moment in enumerate(moments))
    last = -(len(moments) - 1) * height
    whole_width, whole_height = width + 2 * MARGIN, height + BAR + MARGIN
    dots = "".join(
        f'<circle cx="{MARGIN + 6 + 20 * number}" cy="18" r="6" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole_width} {whole_height}" width="{whole_width}" '
        f'height="{whole_height}" role="img" aria-label="A terminal in which unpoison demo runs and accounts for every order">'
        f"<style>text{{font:14px {FONT};fill:{COLOURS['default']};white-space:pre}}.b{{font-weight:bold}}"
        f"{_classes()}.film{{animation:play {total:.1f}s step-end infinite}}@keyframes play{{{jumps}}}"
        f"@media(prefers-reduced-motion:reduce){{.film{{animation:none}}}}</style>"
        f'<rect x=".5" y=".5" width="{whole_width - 1}" height="{whole_height - 1}" rx="10" fill="#0d1420" stroke="#4b5768"/>'
        f'{dots}<svg x="{MARGIN}" y="{BAR}" width="{width}" height="{height}">'
        f'<g class="film" transform="translate(0,{last})">{frames}</g></svg></svg>\n'
    )


def _classes() -> str:
    return "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items() if name != "default")


def _height(frame: Frame) -> int:
    used = [number for number, line in enumerate(frame, 1) if any(char.data.strip() for char in line)]
    return max(used, default=0)


def _drawn_frame(frame: Frame, top: int) -> str:
    rows = ((number, _drawn_line(line)) for number, line in enumerate(frame))
    return "".join(f'<text y="{top + (number + 1) * LEADING - 5}">{spans}</text>' for number, spans in rows if spans)


def _drawn_line(line: Line) -> str:
    """Each run of one look at its own place, so that no font can shift what is behind it."""
    spans, column = [], 0
    for (colour, is_bold), run in groupby(line, key=lambda char: (char.fg, char.bold)):
        text = "".join(char.data for char in run)
        if text.strip():
            blank = len(text) - len(text.lstrip())
            spans.append(
                f'<tspan x="{(column + blank) * ADVANCE:.0f}"{_look(colour, is_bold)}>{escape(text.strip(), quote=False)}</tspan>'
            )
        column += len(text)
    return "".join(spans)


def _look(colour: str, is_bold: bool) -> str:
    classes = [name for name in (colour, "b" if is_bold else "") if name in COLOURS or name == "b"]
    classes = [name for name in classes if name != "default"]
    look = f' class="{" ".join(classes)}"' if classes else ""
    return look if colour in COLOURS else f'{look} fill="#{colour}"'


def main() -> None:
    picture = drawn(chosen(record()))
    if len(picture.encode()) > LARGEST:
        sys.exit(f"The picture has {len(picture.encode()):,} bytes, more than {LARGEST:,}. Lower MOST_FRAMES.")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture, encoding="utf-8")
    print(
        f"{PICTURE.relative_to(Path.cwd()) if PICTURE.is_relative_to(Path.cwd()) else PICTURE}: {len(picture.encode()):,} bytes"
    )


if __name__ == "__main__":
    main()
