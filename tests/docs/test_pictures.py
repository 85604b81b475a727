"""Can the words in the pictures be read, on light and on dark pages, and at the width of a phone?"""

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from scripts import record_demo
from tests.docs.contrast import Label, labels
from tests.docs.pages import ROOT

PICTURES = sorted((ROOT / "docs" / "images").glob("*.svg"))
NARROW = 400
"""As wide as the page of a phone: a picture of this width is shown there as large as it was drawn."""
CSS = (ROOT / "docs" / "stylesheets" / "extra.css").read_text()
SMALLEST = 11
"""Pixels of a letter that can be read."""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_every_label_has_the_contrast_that_wcag_asks_for(picture, dark):
    found = list(labels(picture.read_text(), dark=dark))
    assert found
    weak = {f"{one.words}: {one.colour} on {one.behind} is {one.contrast:.2f}" for one in found if one.contrast < one.needed}
    assert weak == set()


def test_the_contrast_is_counted_as_wcag_counts_it():
    assert Label("x", "#000", "#fff", is_large=False).contrast == pytest.approx(21)
    assert Label("x", "#767676", "#ffffff", is_large=False).contrast == pytest.approx(4.54, abs=0.005)
    assert Label("x", "#777777", "#ffffff", is_large=False).contrast == pytest.approx(4.48, abs=0.005)


def test_a_label_is_compared_with_what_is_behind_it_in_each_scheme():
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg"><style>.card { fill: #fff } .a, .b { fill: #000; font-size: 12px } '
        "@media (prefers-color-scheme: dark) { .card { fill: #000 } .a { fill: #fff } }</style>"
        '<rect class="card" width="100" height="100"/><rect x="10" y="10" width="20" height="20" fill="#123456"/>'
        '<text class="a" x="50" y="50">on the card</text><text class="b" x="12" y="22">on the box</text>'
        '<text x="50" y="90">━━<tspan fill="#111111">3 of 4</tspan></text></svg>'
    )
    light, dark = (list(labels(picture, dark=dark)) for dark in (False, True))
    assert [(one.colour, one.behind) for one in light] == [("#000", "#fff"), ("#000", "#123456"), ("#111111", "#fff")]
    assert [(one.colour, one.behind) for one in dark] == [("#fff", "#000"), ("#000", "#123456"), ("#111111", "#000")]


def test_every_colour_of_the_recorded_terminal_can_be_read():
    """Also those that the demo does not use today."""
    behind = re.search(r'rx="10" fill="(#\w+)"', record_demo.drawn([record_demo.Moment(0.0, ((),))]))[1]
    shown = {name: Label(name, colour, behind, is_large=False) for name, colour in record_demo.COLOURS.items()}
    assert [name for name, label in shown.items() if label.contrast < label.needed] == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_the_smallest_letter_can_be_read_on_a_phone(picture):
    """A picture is drawn as narrow as that, or has a least width in the stylesheet and scrolls."""
    text = picture.read_text()
    width = float(ElementTree.fromstring(text).get("viewBox").split()[2])
    smallest = min(float(size) for size in re.findall(r"(?:font-size: ?|font: ?)([\d.]+)px", text))
    least = re.search(rf'img\[src\$="{picture.name}"\][^{{]*\{{[^}}]*min-width: (\d+)px', CSS)
    shown = max(NARROW, int(least[1])) if least else NARROW
    assert smallest * shown / width >= SMALLEST


@pytest.mark.parametrize("name", ["plan.svg", "simulation.svg"])
def test_the_picture_of_a_plan_is_what_the_command_draws(name, tmp_path):
    words = re.search(rf"\$ unpoison (plan .*--svg) {name}\n", (ROOT / "docs" / "plan.md").read_text())[1].split()
    subprocess.run([sys.executable, "-m", "unpoison", *words, str(tmp_path / name)], check=True, capture_output=True)
    assert (tmp_path / name).read_text() == (ROOT / "docs" / "images" / name).read_text(), "To draw it anew: make docs"
