"""Can the site be built, strictly, and is it whole?"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.docs_cli import PAGE, page
from tests.docs.pages import ROOT, blocks, commands
from tests.docs.site import Page, problems


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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    assert built(folder).returncode == 0
    return folder / "site"


def pages_of(site):
    return {path: Page(path.read_text()) for path in sorted(site.rglob("index.html"))}


def test_every_page_leads_to_the_previous_and_to_the_next(site):
    links = {path: path.read_text() for path in pages_of(site)}
    assert len(links) == len(list((ROOT / "docs").glob("*.md")))
    assert sum("md-footer__link--prev" not in text for text in links.values()) == 1, "only the first page has none before it"
    assert sum("md-footer__link--next" not in text for text in links.values()) == 1, "only the last page has none after it"


def test_every_page_says_version_state_and_licence(site):
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    state = next(line.rpartition("- ")[2].lower() for line in about["classifiers"] if line.startswith("Development Status"))
    for path in pages_of(site):
        footer = path.read_text().partition('<div class="md-copyright__highlight">')[2].partition("</div>")[0]
        for word in (f"{about['name']} {about['version']}", state, f"{about['license']} licence"):
            assert word in footer, f"{path.relative_to(site)}: {word}"


def test_the_button_copies_the_commands_of_a_session_and_nothing_else(site):
    """It copies what the stylesheet leaves visible while the block has the attribute data-md-copying."""
    css = " ".join((site / "stylesheets" / "extra.css").read_text().split())
    assert "[data-md-copying] .gp, [data-md-copying]:has(.gp) > span:not(:has(.gp)) { display: none; }" in css
    assert "data-md-copying" in "".join(path.read_text() for path in (site / "assets" / "javascripts").glob("bundle*.js"))
    for name in ("index", "tutorial", "sqlite", "options"):
        file = site / ("index.html" if name == "index" else f"{name}/index.html")
        sessions = [block for block in blocks((ROOT / "docs" / f"{name}.md").read_text()) if block.language == "console"]
        shown = [code for code in Page(file.read_text()).codes if any("gp" in each.classes for line in code for each in line)]
        assert [copied(code) for code in shown] == ["\n".join(each.text for each in commands(block)) for block in sessions]


def copied(code):
    with_prompt = [line for line in code if any("gp" in each.classes for each in line)]
    return "".join(each.text for line in with_prompt for each in line if "gp" not in each.classes).rstrip()


def test_tables_can_be_read_on_a_phone(site):
    """Each table has one head and one body, of which tables.js takes the headings; every page loads it and the stylesheet."""
    for path, parsed in pages_of(site).items():
        loaded = " ".join(parsed.loaded)
        assert "javascripts/tables.js" in loaded
        assert "stylesheets/extra.css" in loaded
        text = path.read_text()
        assert text.count("<table>") == text.count("<thead>") == text.count("<tbody>")
    css = (ROOT / "docs" / "stylesheets" / "extra.css").read_text()
    script = (ROOT / "docs" / "javascripts" / "tables.js").read_text()
    for name in ("data-kind", "data-heading"):
        assert name in css
        assert f"dataset.{name.removeprefix('data-')}" in script
