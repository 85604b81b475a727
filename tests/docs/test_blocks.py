"""Does everything that README and docs show happen as they show it?"""

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, commands
from tests.docs.story import NOT_RUN, Differs, Story, compare, why_not


def told(text, folder):
    with Story("page.md", folder) as story:
        for block in blocks(text):
            story.tell(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_happens_as_it_is_written(page: Path, tmp_path):
    with Story(str(page.relative_to(ROOT)), tmp_path) as story:
        for block in blocks(page.read_text()):
            story.tell(block)


def test_every_exception_from_being_run_is_needed():
    shown = [
        command.text
        for page in PAGES
        for block in blocks(page.read_text())
        if block.language in ("console", "shell")
        for command in commands(block)
    ]
    needless = [pattern for pattern in NOT_RUN if not any(re.match(pattern, command) for command in shown)]
    assert needless == []
    assert any(why_not(command) is None for command in shown)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```python\nraise KeyError('piano')\n```", "KeyError: 'piano'"),
        ("<!-- file: a.py -->\n\n```python\nimport no_such_module\n```", "No module named 'no_such_module'"),
        ("```console\n$ echo 1\n2\n```", "shows a line that was not written: '2'"),
        ("```console\n$ printf '1\\n2\\n'\n1\n```", "does not show this line: '2'"),
        ("```console\n$ false\n```", "ended with 1, not 0"),
        ("<!-- exit: 1 -->\n```console\n$ true\n```", "ended with 0, not 1"),
        ("```\nls\n```", "no language"),
        ("Run\n\n    unpoison frob\n", "No such command 'frob'"),
        ("```console\nls\n```", "begins with a command"),
    ],
    ids=["raises", "import", "differs", "more", "fails", "does not fail", "language", "indented", "no command"],
)
def test_a_page_that_is_wrong_is_found(page, said, tmp_path):
    with pytest.raises(AssertionError) as caught:
        told(page, tmp_path)
    assert said in str(caught.value)


def test_a_page_is_one_story(tmp_path):
    told(
        "<!-- file: shop.py -->\n```python\nNAME = 'shop'\n```\n\n- then\n\n"
        '  ```console\n  $ python -c "import shop; print(shop.NAME, 5)"\n  shop …\n  ```\n\n'
        "<!-- exit: 3 -->\n```console\n$ true\n$ sh -c 'echo a; \\\n> exit 3'\na\n```\n",
        tmp_path,
    )


def test_a_command_that_serves_is_stopped_once_it_has_shown_what_is_shown(tmp_path):
    told("```console\n$ sh -c 'trap \"echo bye; exit 0\" INT; echo up; while :; do sleep 0.1; done'\nup\n^C\nbye\n```", tmp_path)


def test_what_runs_in_the_background_is_ended_with_the_page(tmp_path):
    told(
        "```console\n$ echo $$ > it.pid; while :; do echo up; sleep 0.1; done > it.log &\n"
        "$ tail -F -n +1 it.log\nup\nup\n…\n^C\n```",
        tmp_path,
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "it.pid").read_text()), 0)


def test_a_service_of_a_page_has_a_port_of_its_own_in_each_run(tmp_path):
    page = "<!-- file: a.txt -->\n```text\n127.0.0.1:8099\n```\n```console\n$ cat a.txt\n127.0.0.1:8099\n```"
    ports = set()
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        told(page, tmp_path / folder)
        ports.add((tmp_path / folder / "a.txt").read_text())
    assert len(ports) == 2


def test_a_difference_is_found_whatever_the_order():
    assert compare(["b", "a"], ["a", "b"]) == ""
    assert compare(["a  …  c", "…"], ["a b c", "d"]) == ""
    assert compare(["…", "a"], ["b"])
    assert compare(["a", "a"], ["a"])
    with pytest.raises(Differs):
        Story("page.md", Path()).tell(next(blocks("```fortran\n```")))
