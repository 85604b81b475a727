"""How well can the words in an SVG picture be read? The contrast of each text with what is drawn behind it, as WCAG 2 counts it.

Knows what our pictures use: rules of one class or element, one @media block for dark pages, rectangles behind text.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
LARGE, LARGE_BOLD = 24.0, 18.66
"""Pixels from which text counts as large and needs less contrast."""

Rules = dict[str, dict[str, str]]
Box = tuple[float, float, float, float, str]


class Label(NamedTuple):
    """A text of a picture, in the colours of one scheme."""

    words: str
    colour: str
    behind: str
    is_large: bool

    @property
    def contrast(self) -> float:
        light, dark = sorted((_luminance(self.colour), _luminance(self.behind)), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    @property
    def needed(self) -> float:
        return 3.0 if self.is_large else 4.5


def labels(picture: str, *, dark: bool) -> Iterator[Label]:
    """Every text with letters or digits in it. Bars that are drawn with characters are no words."""
    root = ElementTree.fromstring(picture)
    rules = _rules("".join(style.text or "" for style in root.iter(f"{SVG}style")), dark=dark)
    boxes: list[Box] = []
    for element in root.iter():
        given = _given(element, rules)
        if element.tag == f"{SVG}rect" and given.get("fill") and float(given.get("fill-opacity", "1")) > 0.5:
            boxes.append((*(float(element.get(name, "0")) for name in ("x", "y", "width", "height")), given["fill"]))
        elif element.tag == f"{SVG}text":
            point = float(element.get("x", "0")), float(element.get("y", "0")) - 4
            for words, looks in _runs(element, given, rules):
                if re.search(r"\w", words):
                    size = float(re.match(r"[\d.]+", looks.get("font-size", "14"))[0])
                    large = size >= LARGE or (size >= LARGE_BOLD and looks.get("font-weight") in ("600", "bold"))
                    yield Label(words, looks.get("fill", "#000000"), _behind(point, boxes), large)


def _runs(text: ElementTree.Element, given: dict[str, str], rules: Rules) -> Iterator[tuple[str, dict[str, str]]]:
    yield text.text or "", given
    for part in text.iter(f"{SVG}tspan"):
        yield part.text or "", given | _given(part, rules)


def _behind(point: tuple[float, float], boxes: list[Box]) -> str:
    """What was drawn last below this point, else the card that the whole picture lies on."""
    assert boxes, "the picture has no background of its own: on which page can it be read?"
    x, y = point
    hit = (fill for left, top, width, height, fill in reversed(boxes) if left <= x <= left + width and top <= y <= top + height)
    return next(hit, boxes[0][4])


def _given(element: ElementTree.Element, rules: Rules) -> dict[str, str]:
    """Attributes give way to rules, as in a browser, and the element's own rule to its classes'."""
    looks: dict[str, str] = {
        name: element.attrib[name] for name in ("fill", "fill-opacity", "font-size") if name in element.attrib
    }
    for selector in (element.tag.removeprefix(SVG), *(f".{name}" for name in element.get("class", "").split())):
        looks |= rules.get(selector, {})
    return looks


def _rules(style: str, *, dark: bool) -> Rules:
    media = re.compile(r"@media\s*\(\s*prefers-color-scheme:\s*dark\s*\)\s*\{((?:[^{}]*\{[^{}]*\})*)\s*\}")
    texts = [re.sub(r"@\w+[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", media.sub("", style))]
    texts += media.findall(style) if dark else []
    found: Rules = {}
    for text in texts:
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
            looks = dict(re.findall(r"([\w-]+)\s*:\s*([^;]+?)\s*(?:;|$)", body))
            if "font" in looks and (size := re.search(r"([\d.]+)px", looks["font"])):
                looks["font-size"] = size[1]
            for selector in selectors.split(","):
                found[selector.strip()] = found.get(selector.strip(), {}) | looks
    return found


def _luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    assert re.fullmatch(r"[0-9a-fA-F]{3}|[0-9a-fA-F]{6}", digits), f"{colour!r} is not a colour that this can read"
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
