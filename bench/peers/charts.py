"""How do the figures look? Two charts as SVG: plain shapes and text, as narrow as a phone, where nothing is made smaller.

They bring their own background and follow the colours that the reader prefers. tests/docs/test_pictures.py measures the contrast.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, MARGIN = 400, 14
LINE = 36
SQUARE = 18

FATES = {
    "done": "done",
    "done, more than once": "again",
    "dead-lettered": "dead",
    "not handled": "idle",
    "lost": "lost",
}
"""What may become of a healthy message, and the class of its square."""

LIGHT = {
    "card": "#ffffff",
    "text": "#1f2328",
    "dim": "#59636e",
    "ours": "#1a7f4b",
    "theirs": "#3f6fb5",
    "loop": "#6e7781",
    "poison": "#7a5195",
    "done": "#1a7f4b",
    "again": "#5fa886",
    "dead": "#b65c00",
    "idle": "#7f8893",
    "lost": "#b3273a",
}
DARK = LIGHT | {
    "card": "#0d1117",
    "text": "#e6edf3",
    "dim": "#9aa4af",
    "ours": "#4fc98a",
    "theirs": "#6aa5ff",
    "loop": "#8b949e",
    "poison": "#b58ad6",
    "done": "#4fc98a",
    "again": "#2e7d57",
    "dead": "#e3a13b",
    "idle": "#77808b",
    "lost": "#ff7b72",
}


class Bar(NamedTuple):
    label: str
    value: float
    kind: str
    """`ours`, `theirs` or `loop`."""


class Fate(NamedTuple):
    """One setup in the kill test."""

    label: str
    starts: int
    state: str
    """Empty when it is over and the poison is kept."""
    healthy: Sequence[str]
    is_ours: bool


def speeds(groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Messages per second as bars, a group for each broker. Logarithmic: they are too far apart for anything else."""
    top = max(bar.value for _, bars in groups for bar in bars)
    low = 10 ** math.floor(math.log10(min(bar.value for _, bars in groups for bar in bars)))
    reach = math.log10(top / low)
    shapes, y = [_text(MARGIN, 24, "messages per second, logarithmic scale", "dim")], 34
    for name, bars in groups:
        shapes.append(_text(MARGIN, y + 18, name, "text name"))
        y += 30
        for bar in bars:
            length = max(2.0, (WIDTH - 2 * MARGIN) * math.log10(bar.value / low) / reach)
            shapes.append(_text(MARGIN, y + 11, bar.label, "text strong" if bar.kind == "ours" else "text"))
            shapes.append(_text(WIDTH - MARGIN, y + 11, f"{bar.value:,.0f}", "text end"))
            shapes.append(_rect(bar.kind, MARGIN, y + 17, length, 9))
            y += LINE
        y += 8
    return _svg(
        "Messages per second, one worker", "A bar for each library, on a logarithmic scale, grouped by broker.", shapes, y
    )


def fates(groups: Sequence[tuple[str, Sequence[Fate]]], most: int) -> str:
    """For each setup: how often the poison was started, and a square for each healthy message."""
    shapes, y = list(_legend()), 90
    squares = WIDTH - MARGIN - 5 * SQUARE + 3
    for name, rows in groups:
        shapes.append(_text(MARGIN, y + 18, name, "text name"))
        y += 30
        for row in rows:
            length = max(2.0, 150 * min(row.starts, most) / most)
            shapes.append(_text(MARGIN, y + 11, row.label, "text strong" if row.is_ours else "text"))
            shapes.append(_rect("poison", MARGIN, y + 17, length, 11))
            more = f", {row.state}" if row.state else ""
            shapes.append(_text(MARGIN + length + 6, y + 27, f"{row.starts}{more}", "dim"))
            shapes += (_rect(FATES[fate], squares + SQUARE * at, y + 15, 15, 15, fate) for at, fate in enumerate(row.healthy))
            y += LINE + 2
        y += 8
    words = "For each library: how often a message that kills its worker was started, and what became of the five behind it."
    return _svg("The kill test", words, shapes, y)


def _legend() -> Iterable[str]:
    """Two columns."""
    for at, (words, kind) in enumerate([("starts of the poison", "poison"), *FATES.items()]):
        x, y = MARGIN + 180 * (at % 2), 14 + 24 * (at // 2)
        yield _rect(kind, x, y, 14, 14)
        yield _text(x + 20, y + 11, words, "dim")


def _rect(kind: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    shape = f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="3"'
    return f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>"


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _svg(title: str, description: str, shapes: Iterable[str], height: float) -> str:
    style = (
        f"text {{ font-size: 12px }} .name {{ font-size: 15px; font-weight: 600 }} .strong {{ font-weight: 600 }} "
        f".end {{ text-anchor: end }} {_colours(LIGHT)} @media (prefers-color-scheme: dark) {{ {_colours(DARK)} }}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="t d"',
            "     font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif\">",
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(description)}</desc>',
            f"<style>{style}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="10" stroke="#8b949e"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def _colours(palette: dict[str, str]) -> str:
    return " ".join(f".{name} {{ fill: {colour} }}" for name, colour in palette.items())
