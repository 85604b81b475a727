"""Is what README and docs promise true as it stands there, and the same wherever it stands?"""

import re
import tomllib
from importlib import import_module

import pytest

from tests.docs.pages import PAGES, ROOT
from unpoison.brokers import ADAPTERS
from unpoison.port.broker import Capability

NAMES = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "rabbitmq": "RabbitMQ",
    "redis": "Redis",
    "nats": "NATS",
    "kafka": "Kafka",
    "sqs": "SQS",
}
"""The folder of an adapter, and the name that people know."""

ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
README, INDEX = (ROOT / "README.md").read_text(), (ROOT / "docs" / "index.md").read_text()


def brokers() -> dict[str, Capability]:
    """What each adapter says of itself, by the name that people know."""
    found = {each.module.split(".")[2]: each for each in ADAPTERS.values() if not each.module.endswith("memory")}
    return {
        NAMES[folder]: getattr(import_module(each.module), each.broker).capabilities
        for folder, each in found.items()
        if folder in NAMES
    }


def named(text: str) -> set[str]:
    return {name for name in NAMES.values() if name in text}


def test_every_adapter_has_a_name_here():
    assert brokers().keys() == set(NAMES.values())


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/life.md"])
def test_one_place_is_promised_of_the_brokers_that_move_in_one_step_and_of_no_other(page):
    text = (ROOT / page).read_text()
    (passage,) = (paragraph for paragraph in re.split(r"\n\n|\n- ", text) if "in one place at any time" in paragraph)
    sentences = re.split(r"(?<=\.)\s", re.sub(r"\([\w.#-]+\)", "", passage))
    one_step = {name for name, can in brokers().items() if Capability.ATOMIC in can}
    (promised,) = (sentence for sentence in sentences if "in one place at any time" in sentence)
    (copied,) = (sentence for sentence in sentences if "twice under the same id" in " ".join(sentence.split()))
    assert named(promised) == one_step
    assert named(copied) == brokers().keys() - one_step


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_promised_that_another_page_takes_back(page):
    """isolation.md names the innocent message that ends as lost; the demo measures how long others wait."""
    text = " ".join(page.read_text().split())
    for claim in ("no innocent", "always in exactly one place", "do not notice", "does not notice", "any Python message"):
        assert claim not in text


def test_the_innocent_message_that_can_be_lost_is_told_where_the_table_of_crashes_is():
    assert "can end as `lost`" in " ".join((ROOT / "docs" / "isolation.md").read_text().split())
    for page in (README, INDEX):
        crashes = page.partition("## What happens when it crashes")[2].partition("\n## ")[0]
        assert re.search(r"innocent message can become a dead letter.*`lost`", " ".join(crashes.split()))


def test_readme_and_the_first_page_say_the_same():
    """From the first block to the end of the promises; only links, and where the demo is, may differ."""

    def shared(text: str) -> str:
        crash = text.partition("## What happens when it crashes")[2].partition("\n[")[0]
        code = text.partition("<!-- file: shop.py -->")[2].partition("The second order")[0]
        return (code + crash).replace("the demo above", "the demo below")

    assert shared(README) == shared(INDEX)


def test_the_project_is_described_in_one_way():
    assert SITE["site_description"] == ABOUT["description"]
    assert ABOUT["urls"]["Documentation"] == SITE["site_url"]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_newcomer_finds_what_to_install_what_to_save_and_what_to_run(page):
    text = (ROOT / page).read_text()
    before, _, after = text.partition("```python\n")
    assert "$ pip install unpoison\n" in before
    assert "Save this as `shop.py`" in before
    assert before.rstrip().endswith("<!-- file: shop.py -->")
    assert "$ python shop.py\n" in after.partition("```console\n")[2].partition("```")[0]


def test_links_of_the_readme_work_on_the_package_index():
    """There it stands alone: a relative link leads nowhere. Links into the documentation name a page that there is."""
    pages = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    site = ABOUT["urls"]["Documentation"]
    targets = re.findall(r"\]\(([^)]+)\)", README) + re.findall(r"(?:src|href)=\"([^\"]+)\"", README)
    assert targets
    for target in targets:
        assert target.startswith(site), f"{target} is not below {site}"
        path, _, anchor = target.removeprefix(site).partition("#")
        if path.startswith("images/"):
            assert (ROOT / "docs" / path).is_file()
        else:
            assert path.endswith("/"), target
            assert path.rstrip("/") in pages, target
        assert not anchor, "an anchor would have to be looked up"
