"""What strangers and machines are told about the project is true: versions of Python, shards, commands, clients."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_every_push_is_tested_with_each_python_that_is_promised():
    promised = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    tested = WORKFLOW["everyday"]["strategy"]["matrix"]["python"]
    allowed_to_fail = re.findall(r"'(3\.\d+)'", WORKFLOW["everyday"]["continue-on-error"])
    assert [version for version in tested if version not in allowed_to_fail] == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_every_night_runs_each_shard():
    (command,) = [step["run"] for step in WORKFLOW["long"]["steps"] if "run" in step]
    count = int(re.search(r"SHARD=\$\{\{ matrix\.shard \}\}/(\d+)", command)[1])
    assert WORKFLOW["long"]["strategy"]["matrix"]["shard"] == list(range(1, count + 1))
    assert f"SHARD=2/{count}" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", ".github/workflows/tests.yml", ".github/pull_request_template.md", "README.md"]
)
def test_each_make_target_that_is_named_is_there(page):
    named = set(re.findall(r"(?:`|run: |^    )make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    assert named <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_what_pre_commit_runs_is_what_make_setup_installs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    programs = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert programs == {"ruff", "mypy"} <= set(PROJECT["optional-dependencies"]["dev"])


def test_clients_whose_internals_are_used_have_an_upper_bound_that_the_tests_run_with():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for extra, client in {"rabbitmq": "pika", "nats": "nats-py"}.items():
        (wanted,) = PROJECT["optional-dependencies"][extra]
        bound = re.fullmatch(rf"{client}>=[\d.]+,<(\d+)\.(\d+)", wanted)
        assert bound, f"{wanted} has no upper bound by minor version"
        major, minor = map(int, pinned[client].split(".")[:2])
        assert (major, minor + 1) == (int(bound[1]), int(bound[2])), f"{client} {pinned[client]} is what was tried"


def test_issues_and_pull_requests_are_asked_for_what_helps():
    for name in ("bug.yml", "idea.yml"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
        assert {"name", "description", "body"} <= set(form)
        assert any(each.get("validations", {}).get("required") for each in form["body"])
    assert "SECURITY.md" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
