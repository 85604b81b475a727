"""The walks of docs/architecture.md name files and functions that exist, are short, and lead to no file twice."""

import re

import pytest

from tests.architecture.report import PACKAGE
from tests.docs.pages import ROOT

LIMITS = {"A success, on SQLite": 12, "A crash, up to the stored retry": 14, "A suspect": 14, "A replay, on SQLite": 6}
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` \(([^)]*)\):", re.MULTILINE)
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def steps(walk: str) -> list[tuple[str, list[str]]]:
    (text,) = re.findall(rf"^### {re.escape(walk)}\n(.*?)^##", PAGE, re.MULTILINE | re.DOTALL)
    assert len(STEP.findall(text)) == len(re.findall(r"^\d+\.", text, re.MULTILINE)), "a step without a file and names"
    return [(path, re.findall(r"`(\w+)`", names)) for path, names in STEP.findall(text)]


@pytest.mark.parametrize("walk", LIMITS)
def test_a_walk_is_short_and_leads_to_no_file_twice(walk):
    files = [path for path, _ in steps(walk)]
    assert len(files) <= LIMITS[walk]
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("walk", LIMITS)
def test_what_a_walk_names_is_there(walk):
    for path, names in steps(walk):
        source = (PACKAGE / path).read_text()
        missing = [name for name in names if not re.search(rf"^\s*(async )?(def|class) {name}\b", source, re.MULTILINE)]
        assert (names, missing) == (names or ["a name"], []), path


def test_every_file_that_the_page_names_is_there():
    named = set(re.findall(r"`([\w/]+\.(?:py|lua))`", PAGE))
    there = {f"/{path.relative_to(ROOT)}" for folder in (PACKAGE, ROOT / "tests") for path in folder.rglob("*")}
    assert sorted(name for name in named if not any(path.endswith(f"/{name}") for path in there)) == []
