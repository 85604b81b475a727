"""What can be learnt from `--help`, and is it true?"""

import os
import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from unpoison.cli.main import cli


def commands(command=cli, path=()):
    """Every command with its path: (), ("run",), ("dlq", "ls") …"""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


def called(*arguments, **options):
    return CliRunner().invoke(cli, arguments, prog_name="unpoison", **options)


def examples(path):
    text = called(*path, "--help").output.partition("Examples:")[2]
    return [line.strip() for line in text.strip().splitlines()]


COMMANDS = dict(commands())
PATHS = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def test_these_are_the_commands():
    noted = "dlq restore, dlq note, dlq own, dlq snooze, dlq resolve, dlq export, dlq import"
    dlq = f"dlq, dlq ls, dlq count, dlq groups, dlq show, dlq reveal, dlq replay, dlq discard, {noted}, dlq purge"
    others = "status, pause, resume, notify, plan, alerts, plan-topology, migrate, doctor, leave, completion"
    named = f"demo, run, publish, {dlq}, collect, redaction, audit, {others}"
    assert ", ".join(" ".join(path) for path in COMMANDS if path) == named


@PATHS
def test_help_has_a_sentence_options_and_examples(path):
    shown = called(*path, "--help")
    assert shown.exit_code == 0
    sentence = shown.output.splitlines()[2].strip()
    assert sentence[0].isupper() or sentence.startswith("unpoison ")
    assert "-h, --help" in shown.output
    assert 1 <= len(examples(path)) <= 3
    assert max(map(len, shown.output.splitlines())) <= 80


@PATHS
def test_every_option_is_explained(path):
    options = [option for option in COMMANDS[path].params if isinstance(option, click.Option)]
    silent = [option.name for option in options if not option.help and not isinstance(option.type, click.Choice)]
    assert silent == []


@PATHS
def test_the_examples_are_commands_that_exist(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("orders.jsonl", "letters.jsonl"):
        (tmp_path / name).touch()
    for example in examples(path):
        inner = re.search(r"\$\((.*?)\)", example)
        words = shlex.split(inner[1] if inner else example.rpartition("| ")[2].partition(" >")[0])
        assert words[0] == "unpoison"
        named = max((each for each in COMMANDS if tuple(words[1 : 1 + len(each)]) == each), key=len)
        COMMANDS[named].make_context(" ".join(named), words[1 + len(named) :])  # raises if it is wrong usage


@pytest.mark.parametrize("arguments", [["frob"], ["--frob"], ["dlq", "frob"], ["run"], ["completion", "tcsh"]], ids=" ".join)
def test_wrong_usage_ends_with_2_and_names_what_is_wrong(arguments):
    ended = called(*arguments)
    assert ended.exit_code == 2
    assert "Error: " in ended.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["ls", "--app", "a:b", "--url", "sqlite:///shop.db"],
        ["ls", "--url", "sqlite:///shop.db", "--source", "orders", "--limit", "0"],
        ["ls", "--url", "sqlite:///shop.db", "--source", "orders", "--limit", "some"],
        ["ls", "--url", "sqlite:///shop.db", "--source", "orders", "--state", "gone"],
        ["show"],
        ["show", "orders-1", "--json", "--body", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["replay", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["replay", "orders-1", "--all", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["replay", "--where", "class:crash", "--all", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["replay", "orders-1", "--where", "class:crash", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["replay", "--all", "--dry-run", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["ls", "--where", "sorce:orders", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["discard", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["discard", "orders-1", "--where", "class:crash", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["purge", "--dry-run", "--url", "sqlite:///shop.db", "--source", "orders"],
        ["purge", "orders-1", "--url", "sqlite:///shop.db", "--source", "orders"],
    ],
    ids=" ".join,
)
def test_wrong_usage_of_the_dead_letter_commands(arguments):
    ended = called("dlq", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--raw", "--lines"], "--raw makes one message"),
        (["1", "--file", __file__], "Give one of them"),
        (["1", "--file", "no/such/file"], "does not exist"),
        (["1", "--header", "trace"], "--header name=value"),
        (["1", "--header", "=x"], "--header name=value"),
        (["1", "--header", "a=1", "--header", "a=2"], "given twice"),
        (["1", "--delay", "soon"], "'soon' is not a duration"),
        (["1", "--delay", "-5s"], "'-5s' is not a duration"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_of_publish_sends_nothing(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = called("publish", "sqlite:///shop.db", "orders", *arguments, input="1\n")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_that_of_the_package():
    assert re.fullmatch(r"unpoison \d+\.\d+\.\d+\S*\n", called("--version").output)


@pytest.mark.parametrize(("shell", "check"), [("bash", ["bash", "-n"]), ("zsh", None), ("fish", None)])
def test_the_completion_script_is_one(shell, check):
    script = called("completion", shell).output
    assert "_UNPOISON_COMPLETE" in script
    if check:
        subprocess.run(check, input=script, text=True, check=True, capture_output=True)


def test_commands_and_options_are_completed():
    def completed(*words):
        environment = {
            "_UNPOISON_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["unpoison", *words]),
            "COMP_CWORD": str(len(words)),
        }
        ended = subprocess.run(
            [sys.executable, "-m", "unpoison"],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return [line.partition(",")[2] for line in ended.stdout.splitlines()]

    assert completed("d") == ["demo", "dlq", "doctor"]
    assert completed("dlq", "re") == ["reveal", "replay", "restore", "resolve"]
    assert completed("run", "shop:app", "--until") == ["--until-empty"]
    assert completed("dlq", "ls", "--where", "re") == ["reason:", "replays>"]
    assert completed("dlq", "ls", "--where", "state:d") == ["state:dead", "state:discarded"]
    assert completed("dlq", "ls", "--where", "'not(he") == ["not(header."]


@pytest.mark.parametrize("module", ["unpoison.cli.main", "unpoison.cli.run"])
def test_what_draws_tables_is_not_loaded_before_it_is_needed(module):
    code = f"import sys, {module}; print([name for name in sys.modules if name.split('.')[0] == 'rich'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
