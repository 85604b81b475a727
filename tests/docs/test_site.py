"""Can the site be built, strictly, and is it whole?"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.docs_cli import PAGE, page
from tests.docs.pages import ROOT
from tests.docs.site import problems


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_COLOR": "1"},
    )


@pytest.fixture
def sources(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    return tmp_path


def test_the_site_builds_and_every_link_leads_somewhere(sources):
    ended = built(sources)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert problems(sources / "site") == []


@pytest.mark.parametrize("link", ["[a](no-such-page.md)", "[a](options.md#no-such-anchor)"], ids=["page", "anchor"])
def test_a_link_that_leads_nowhere_stops_the_build(sources, link):
    (sources / "docs" / "index.md").write_text(link)
    assert built(sources).returncode != 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("![a](images/no-such-picture.svg)", "no-such-picture.svg is not there"),
        ('<a href="options.md#nowhere">a</a>', "has no such anchor"),
        ("![a](https://example.org/a.png)", "loads https://example.org/a.png"),
    ],
    ids=["picture", "anchor", "elsewhere"],
)
def test_what_the_build_does_not_see_is_found(sources, text, found):
    (sources / "docs" / "glossary.md").write_text(text)
    built(sources)
    assert any(found in problem for problem in problems(sources / "site"))


def test_every_page_is_in_the_navigation():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]

    def named(entries):
        for entry in entries:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else named(value)

    assert sorted(named(nav)) == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def test_the_command_line_page_is_what_the_commands_say():
    assert PAGE.read_text() == page(), "The commands have changed. To write docs/cli.md anew: make docs"


def test_pictures_need_nothing_else():
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        text = picture.read_text()
        assert "http" not in text.replace("http://www.w3.org/", ""), picture.name
        assert "<script" not in text
