"""Which version of the user's code is this? Distributions here are folders as pip leaves them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unpoison import App
from unpoison.flow.code_version import installed_version

APP = """
from unpoison import App

app = App("sqlite:///shop.db")

@app.consumer("orders")
def ship(order):
    raise KeyError("total")

if __name__ == "__main__":
    app.publish("orders", {})
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with installed packages."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def install(site: Path, name: str, version: str, *files: str, editable: Path | None = None) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},sha256=,1\n" for file in (*files, f"{info.name}/METADATA")))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(APP)
    if editable is not None:
        origin = {"url": editable.as_uri(), "dir_info": {"editable": True}}
        (info / "direct_url.json").write_text(json.dumps(origin))


def test_a_module_has_the_version_of_the_distribution_that_lists_it(site: Path) -> None:
    install(site, "other", "9.9", "other/app.py")
    install(site, "my-shop", "1.2.3", "shop/__init__.py", "shop/app.py")
    assert installed_version(str(site / "shop" / "app.py")) == "1.2.3"


def test_a_file_that_no_distribution_lists_has_none(site: Path, tmp_path: Path) -> None:
    install(site, "my-shop", "1.2.3", "shop/app.py")
    (site / "app.py").write_text("")
    assert installed_version(str(site / "app.py")) is None
    assert installed_version(str(tmp_path / "script.py")) is None
    assert installed_version(None) is None


def test_of_editable_folders_the_innermost_one_counts(site: Path, tmp_path: Path) -> None:
    inner = tmp_path / "a repository" / "services" / "shop"
    install(site, "all-of-it", "1.0", editable=tmp_path / "a repository")
    install(site, "shop", "2.0", editable=inner)
    assert installed_version(str(inner / "src" / "shop" / "app.py")) == "2.0"
    assert installed_version(str(tmp_path / "a repository" / "tool.py")) == "1.0"


def test_packages_in_the_environment_inside_an_editable_folder_are_not_its_own(site: Path, tmp_path: Path) -> None:
    install(site, "the-project", "1.0", editable=tmp_path)
    install(site, "other", "9.9", "other/app.py")
    (site / "stray.py").write_text("")
    assert installed_version(str(site / "other" / "app.py")) == "9.9"
    assert installed_version(str(site / "stray.py")) is None


@pytest.mark.parametrize("broken", ["not json", '{"dir_info": {"editable": true}}', "[]", "\ud800"])
def test_broken_metadata_of_another_package_is_passed_over(site: Path, broken: str) -> None:
    install(site, "a-broken-one", "9.9")
    (site / "a-broken-one-9.9.dist-info" / "direct_url.json").write_bytes(broken.encode("utf-8", "surrogatepass"))
    install(site, "my-shop", "1.2.3", "shop/app.py")
    assert installed_version(str(site / "shop" / "app.py")) == "1.2.3"


@pytest.mark.parametrize(("setting", "expected"), [({}, "1.2.3"), ({"UNPOISON_CODE_VERSION": "1f3c2a9"}, "1f3c2a9")])
def test_a_dead_letter_names_the_installed_version_unless_a_setting_says_otherwise(
    site: Path, tmp_path: Path, setting: dict[str, str], expected: str
) -> None:
    install(site, "my-shop", "1.2.3", "shop/__init__.py", "shop/app.py")
    environment = {**os.environ, "PYTHONPATH": str(site), **setting}
    for arguments in (["-m", "shop.app"], ["-m", "unpoison", "run", "shop.app:app", "--until-empty"]):
        subprocess.run([sys.executable, *arguments], check=True, cwd=tmp_path, env=environment, capture_output=True)
    (letter,) = App(f"sqlite:///{tmp_path}/shop.db").dlq("orders").letters()
    assert letter.code_version == expected
