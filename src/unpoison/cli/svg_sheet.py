"""A sheet for pictures: one SVG file that needs nothing else: no script, no font, no link.

It brings its own background, so it can be read on a light page and on a dark one, and follows the colours that the reader
prefers. Its title and description say in words what it shows.
"""

import textwrap
from collections.abc import Sequence
from html import escape

WIDTH, MARGIN = 840, 28
LINE, ROW = 19, 26
LEFT, RIGHT, MIDDLE = 190, 540, 715
"""Bars are drawn between the first two, their labels left of them. Figures end at the third and at the right margin."""
HEIGHT = 64
"""Of a histogram."""
CHARACTERS = 108
"""So many of a note fit into a line."""

_STYLE = """
  .card{fill:#fff;stroke:#d1d9e0} .ink{fill:#1f2328} .dim{fill:#59636e} .warn{fill:#9a3412} .axis{stroke:#d1d9e0}
  .first{fill:#57606a} .retry{fill:#d97706} .down{fill:#cf222e}
  .p50{fill:#1d5fd6} .p90{fill:#7da7f0} .max{fill:#cfdffb} .start{fill:#1d5fd6}
  text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-variant-numeric:tabular-nums}
  .title{font-size:18px;font-weight:600} .head{font-weight:600}
  @media (prefers-color-scheme:dark){
    .card{fill:#0d1117;stroke:#3d444d} .ink{fill:#e6edf3} .dim{fill:#9aa4af} .warn{fill:#f0b072} .axis{stroke:#3d444d}
    .first{fill:#8b949e} .retry{fill:#e3a13b} .down{fill:#ff7b72}
    .p50{fill:#6aa5ff} .p90{fill:#39629f} .max{fill:#20395e} .start{fill:#6aa5ff}
  }
"""


class Sheet:
    """A column that is filled from the top."""

    def __init__(self) -> None:
        self.y = float(MARGIN)
        self.parts: list[str] = []

    def text(self, words: str, kind: str = "ink", x: float = MARGIN, *, up: float = 0, end: bool = False) -> None:
        anchor = ' text-anchor="end"' if end else ""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{self.y - up:g}"{anchor}>{escape(words)}</text>')

    def line(self, words: str, kind: str = "ink") -> None:
        self.y += LINE
        self.text(words, kind)

    def paragraph(self, words: str, kind: str) -> None:
        for part in textwrap.wrap(words, CHARACTERS):
            self.line(part, kind)

    def bar(self, kind: str, share: float) -> None:
        """From the left, above the line that is written on. What is more than nothing can be seen."""
        width = max(share * (RIGHT - LEFT), 1.5) if share > 0 else 0.0
        box = f'x="{LEFT}" y="{self.y - 11:.1f}" width="{width:.1f}" height="14"'
        self.parts.append(f'<rect class="{kind}" {box} rx="2"/>')

    def histogram(self, counts: Sequence[float], highest: float, height: float = HEIGHT, kind: str = "start") -> None:
        """Upright bars that stand on the line."""
        width = (RIGHT - LEFT) / len(counts)
        for place, count in enumerate(counts):
            if count:
                size = max(count / highest * height, 1.0)
                x = LEFT + place * width
                self.rectangle(kind, x, self.y - size, width - 0.6, size)
        self.parts.append(f'<path class="axis" d="M{LEFT} {self.y:g}H{RIGHT}"/>')

    def rectangle(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect class="{kind}" {box}/>')

    def section(self, name: str, *columns: str) -> None:
        self.y += 16
        self.line(name, "ink head")
        for words, x in zip(columns, (MIDDLE, WIDTH - MARGIN), strict=True):
            self.text(words, "dim", x=x, end=True)

    def notes(self, texts: Sequence[str]) -> None:
        self.y += 4
        for text in texts:
            self.paragraph(text, "dim")

    def document(self, title: str, described: str) -> str:
        """The whole file. `described` is for those who do not see the picture."""
        height = self.y + MARGIN
        size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(title)}</title>',
                f'<desc id="desc">{escape(described)}</desc>',
                f"<style>{_STYLE}</style>",
                f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"/>',
                *self.parts,
                "</svg>\n",
            ]
        )
