"""The first minute after `pip install unpoison`, in an environment that has nothing else."""

import os
import re
import shlex
import tomllib
import zipfile

import pytest

from tests.e2e.installed_wheel import PROJECT, install
from unpoison.brokers import ADAPTERS

pytestmark = pytest.mark.timeout(300)  # the first test to come builds and installs

ABOUT = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
VERSION, EXTRAS = ABOUT["version"], ABOUT["optional-dependencies"]
ONE_SCHEME_OF_EACH = sorted({each.module: name for name, each in ADAPTERS.items() if name not in ("sqlite", "memory")}.values())
"""Of each adapter that needs a client."""
CLIENTS = {"requests", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"}
"""Packages of others that handlers in the docs use."""
README_APP = re.search(r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)[1]


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return install((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "installed-wheel")


def test_few_packages_come_with_it(installed):
    of_rich = {"markdown-it-py", "mdurl", "pygments"}
    assert set(installed.packages()) == {"unpoison", "msgspec", "click", "rich", *of_rich}


def test_the_version_is_that_of_the_project(installed, tmp_path):
    assert installed.packages()["unpoison"] == VERSION
    assert installed.run("unpoison", "--version", cwd=tmp_path).text == f"unpoison {VERSION}\n"


def test_what_the_tutorial_installs_is_this_project(installed):
    """Another project's package of that name on the index would be newer, or have other files."""
    with zipfile.ZipFile(installed.wheel) as archive:
        ours = archive.read(f"unpoison-{VERSION}.dist-info/METADATA")
    (found,) = installed.folder.glob("lib/python*/site-packages/unpoison-*.dist-info/METADATA")
    assert found.read_bytes() == ours
    assert installed.run("unpoison", "--help", cwd=installed.folder).text.startswith("Usage: unpoison ")


@pytest.mark.parametrize("page", sorted((PROJECT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_tells_to_install_nothing_but_what_there_is(page):
    for line in re.findall(r"pip install ([^`\n]*)", page.read_text()):
        words = [word for word in shlex.split(line) if not word.startswith("-") and word not in CLIENTS]
        told = [re.fullmatch(r"unpoison(?:\[(\w+)\])?", word) for word in words]
        assert all(told), f"{page.name} tells to install {line!r}"
        assert {word[1] for word in told if word[1]} <= set(EXTRAS)


def test_the_wheel_has_the_package_with_its_types_and_nothing_else(installed):
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    about = f"unpoison-{VERSION}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"unpoison", about}
    assert {"unpoison/py.typed", "unpoison/cli/main.py", f"{about}/licenses/LICENSE", f"{about}/entry_points.txt"} <= names
    assert [name for name in names if "test_" in name or "conftest" in name or "__pycache__" in name] == []


def test_it_is_the_wheel_that_is_tested(installed, tmp_path):
    shown = installed.run("python", "-c", "import unpoison; print(unpoison.__file__)", cwd=tmp_path).text
    assert shown.startswith(str(installed.folder))


def test_every_command_can_be_asked_for_help(installed, tmp_path):
    shown = installed.run("unpoison", "--help", cwd=tmp_path)
    assert (shown.code, shown.err) == (0, "")
    commands = re.findall(r"^  (\w+) ", shown.text.partition("Commands:")[2].partition("Examples:")[0], re.MULTILINE)
    assert {"demo", "run", "publish", "dlq", "plan"} <= set(commands)
    for command in commands:
        helped = installed.run("unpoison", command, "--help", cwd=tmp_path)
        assert (helped.code, helped.err) == (0, ""), command


def test_the_demo_accounts_for_every_order(installed, tmp_path):
    ended = installed.run("unpoison", "demo", "--json", "--messages", "60", cwd=tmp_path)
    assert ended.code == 0, ended.err
    told = ended.json
    assert told["published"] == 60 == told["done"] + told["dead"] + told["discarded"] + told["waiting"]
    assert told["lost"] == 0 < told["dead"]


def test_the_app_of_the_readme_runs(installed, tmp_path):
    (tmp_path / "shop.py").write_text(README_APP)
    ran = installed.run("python", "shop.py", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "shipping 1\n" in ran.text
    assert "KeyError" in ran.text
    (letter,) = installed.run("unpoison", "dlq", "ls", "--app", "shop:app", "--json", cwd=tmp_path).json
    assert (letter["body"], letter["classification"], letter["error"]) == ('{"total":0}', "permanent", "'id'")
    assert "KeyError" in installed.run("unpoison", "dlq", "ls", "--app", "shop:app", cwd=tmp_path).text


def test_messages_are_published_and_consumed_from_the_command_line(installed, tmp_path):
    (tmp_path / "shop.py").write_text(README_APP)
    sent = installed.run("unpoison", "publish", "sqlite:///shop.db", "orders", '{"id": 7}', "{}", cwd=tmp_path)
    assert sent.text == "Sent 2 messages to 'orders', which did not exist before.\n"
    ran = installed.run("unpoison", "run", "shop:app", "--until-empty", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "shipping 7\n" in ran.text
    assert "orders  1 done, 1 dead" in ran.text


def test_the_plan_is_drawn(installed, tmp_path):
    ended = installed.run("unpoison", "plan", "--svg", "plan.svg", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert (tmp_path / "plan.svg").exists()


def test_a_missing_extra_names_the_command_that_installs_it(installed, tmp_path):
    (tmp_path / "shop.py").write_text(README_APP.replace("timeout=300", 'schema={"type": "object"}'))
    for command in (["run", "shop:app", "--until-empty"], ["dlq", "ls", "--app", "shop:app"]):
        ended = installed.run("unpoison", *command, cwd=tmp_path)
        assert ended.code == 1
        assert "needs the package 'jsonschema', which is not installed. Run: pip install 'unpoison[jsonschema]'" in ended.err
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("scheme", ONE_SCHEME_OF_EACH)
def test_a_broker_whose_client_is_missing_names_the_command_that_installs_it(installed, tmp_path, scheme):
    (tmp_path / "shop.py").write_text(README_APP.replace("sqlite:///shop.db", f"{scheme}://localhost/shop"))
    for command in (["run", "shop:app", "--until-empty"], ["publish", f"{scheme}://localhost/shop", "orders", "1"]):
        ended = installed.run("unpoison", *command, cwd=tmp_path)
        assert ended.code == 1
        extra = re.search(r"which is not installed\. Run: pip install 'unpoison\[(\w+)\]'", ended.err)[1]
        assert extra in EXTRAS
        assert "Traceback" not in ended.err


def test_a_package_that_the_app_imports_and_is_missing_is_named_with_its_line(installed, tmp_path):
    (tmp_path / "shop.py").write_text("import pydantic\n" + README_APP)
    ended = installed.run("unpoison", "run", "shop:app", cwd=tmp_path)
    assert ended.code == 1
    assert "No module named 'pydantic'" in ended.err
    assert "shop.py, line 1: import pydantic" in ended.err
    assert str(installed.folder) in ended.err
