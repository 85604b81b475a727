"""How do the figures look? Two charts as SVG: plain shapes and text, readable on a light and on a dark page."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

WIDTH = 1000
LINE = 26
LEFT = 400
TEXT, OURS, THEIRS, LOOP = "#7d8795", "#2f8f6b", "#5b7fae", "#9aa3af"

COLOURS = {
    "done": "#2f8f6b",
    "done, more than once": "#8cc3ac",
    "dead-lettered": "#d9822b",
    "not handled": "#9aa3af",
    "lost": "#b3273a",
}
"""What may become of a healthy message."""

POISON = "#7a5195"


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
    shapes, y = [_text(LEFT, 18, "messages per second, logarithmic scale", "figure")], 26
    for name, bars in groups:
        shapes.append(_text(8, y + 18, name, "name"))
        y += LINE + 4
        for bar in bars:
            length = (WIDTH - LEFT - 110) * math.log10(bar.value / low) / reach
            colour = {"ours": OURS, "theirs": THEIRS, "loop": LOOP}[bar.kind]
            shapes.append(_text(LEFT - 10, y + 15, bar.label, "right"))
            shapes.append(f'<rect x="{LEFT}" y="{y + 2}" width="{max(2.0, length):.1f}" height="18" rx="3" fill="{colour}"/>')
            shapes.append(_text(LEFT + max(2.0, length) + 8, y + 16, f"{bar.value:,.0f}", "figure"))
            y += LINE
        y += 12
    return _svg(
        "Messages per second, one worker", "A bar for each library, on a logarithmic scale, grouped by broker.", shapes, y
    )


def fates(groups: Sequence[tuple[str, Sequence[Fate]]], most: int) -> str:
    """For each setup: how often the poison was started, and a square for each healthy message."""
    shapes, y = list(_legend(8, 20)), 44
    squares = WIDTH - 5 * 28 - 10
    for name, rows in groups:
        shapes.append(_text(8, y + 18, name, "name"))
        y += LINE + 4
        for row in rows:
            length = (squares - LEFT - 150) * min(row.starts, most) / most
            shapes.append(_text(LEFT - 10, y + 15, row.label, "ours" if row.is_ours else "right"))
            shapes.append(f'<rect x="{LEFT}" y="{y + 2}" width="{max(2.0, length):.1f}" height="18" rx="3" fill="{POISON}"/>')
            more = f", {row.state}" if row.state else ""
            shapes.append(_text(LEFT + max(2.0, length) + 8, y + 16, f"{row.starts}{more}", "figure"))
            for at, fate in enumerate(row.healthy):
                shapes.append(
                    f'<rect x="{squares + 28 * at}" y="{y + 1}" width="22" height="20" rx="3" fill="{COLOURS[fate]}">'
                    f"<title>{escape(fate)}</title></rect>"
                )
            y += LINE
        y += 12
    words = "For each library: how often a message that kills its worker was started, and what became of the five behind it."
    return _svg("The kill test", words, shapes, y)


def _legend(x: float, y: float) -> Iterable[str]:
    yield f'<rect x="{x}" y="{y - 13}" width="16" height="16" rx="3" fill="{POISON}"/>'
    yield _text(x + 22, y, "starts of the poison", "figure")
    x += 200
    for words, colour in COLOURS.items():
        yield f'<rect x="{x}" y="{y - 13}" width="16" height="16" rx="3" fill="{colour}"/>'
        yield _text(x + 22, y, words, "figure")
        x += 50 + 7.4 * len(words)


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _svg(title: str, description: str, shapes: Iterable[str], height: float) -> str:
    style = (
        f"text {{ fill: {TEXT}; font-size: 14px }} .name {{ font-size: 16px; font-weight: 600 }} "
        f".right, .ours {{ text-anchor: end }} .ours {{ fill: {OURS}; font-weight: 600 }}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="t d"',
            "     font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif\">",
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(description)}</desc>',
            f"<style>{style}</style>",
            *shapes,
            "</svg>\n",
        ]
    )
