"""What does `unpoison alerts` print, and what does it refuse?"""

import json

import pytest
import yaml
from click.testing import CliRunner

from unpoison.cli.main import cli


def called(*arguments):
    return CliRunner().invoke(cli, ["alerts", *arguments], prog_name="unpoison")


def test_rules_are_yaml_for_people_and_json_for_scripts():
    shown = called()
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith("# ")
    assert yaml.safe_load(shown.stdout) == json.loads(called("--json").stdout)


def test_every_option_reaches_the_rules():
    chosen = called(
        "--depth", "7", "--oldest", "2h", "--share", "3%", "--by", "namespace, job", "--runbook-url", "https://wiki/x#top"
    )
    text = chosen.stdout
    for part in (
        "(last_over_time(dlq_depth[5m])) > 7",
        "> 7200",
        "> 0.03",
        "by (namespace, job, queue)",
        '"https://wiki/x#UnpoisonOldMessages"',
        "more than 3 %",
    ):
        assert part in text
    assert "by (queue)" in called("--by", "").stdout


def test_the_dashboard_is_json_and_leads_to_the_runbook():
    shown = json.loads(called("--dashboard", "--runbook-url", "https://wiki/x").stdout)
    assert shown["links"][0]["url"] == "https://wiki/x"
    assert "https://wiki/x#UnpoisonManyDeadLetters" in json.dumps(shown)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--share", "0"], "'0' is never, or always"),
        (["--share", "100%"], "never, or always"),
        (["--share", "5"], "Write 5% or 0.05"),
        (["--oldest", "0s"], "more than 0"),
        (["--depth", "-1"], "-1 is not in the range"),
        (["--by", "instance"], "each would alert by itself"),
        (["--by", "a-b"], "not the name of a label"),
        (["--runbook-url", "wiki"], "'wiki' is not an address"),
        (["--dashboard", "--cloudwatch"], "Ask for one of them"),
        (["orders"], "Sources go with --cloudwatch"),
        (["--app", "shop:app"], "Sources go with --cloudwatch"),
        (["--cloudwatch"], "Name the sources"),
        (["--cloudwatch", "orders", "--share", "2%"], "leave out --share"),
        (["--dashboard", "--depth", "3"], "leave out --depth"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_prints_nothing(arguments, said):
    ended = called(*arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in " ".join(ended.stderr.split())
