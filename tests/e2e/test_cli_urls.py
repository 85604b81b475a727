"""What does a person read about a URL that is wrong, and is a password ever among it?"""

import subprocess
import sys
import traceback
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.command_line import UNPOISON, dead_letters, environment, unpoison
from unpoison.brokers import findings_for
from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.cli.main import main
from unpoison.errors import UnpoisonError

SECRET = "s3cr3t-hush"

WRONG = [
    ("amqp://u:s3cr3t-hush@h:notaport/v", "'notaport'"),
    ("amqps://u:s3cr3t-hush@h:99999/v", "'99999'"),
    ("redis://u:s3cr3t-hush@[::1/0", "[::1]"),
    ("rediss://u:s3cr3t-hush@h:99999/0", "'99999'"),
    ("redis+sentinel://u:s3cr3t-hush@h:x/main", "'x'"),
    ("nats://s3cr3t-hush@h:99999", "'99999'"),
    ("tls://u:s3cr3t-hush@[::1", "[::1]"),
    ("kafka://u:s3cr3t-hush@h:x?group=g", "'x'"),
    ("kafka+ssl://u:s3cr3t-hush@h:99999?group=g", "'99999'"),
    ("postgresql://u:s3cr3t-hush@h:99999/db", "'99999'"),
    ("postgres://u:s3cr3t-hush%zz@h/db", "invalid percent-encoded"),
    ("postgresql://h/db?user=u&password=s3cr3t-hush&bogus=1", "bogus"),
    ("postgresql://u:s3cr3t-hush/x@h/db", "%2F"),
    ("sqs://AKIA:s3cr3t-hush/x@?region=eu-west-1", "%2F"),
    ("sqs://AKIA:s3cr3t-hush@?region=eu-west-1&endpoint=http://h:99999", "'99999'"),
    ("rabbit://u:s3cr3t-hush@h/v", "names no broker"),
    ("sqlite:shop.db", "sqlite:///shop.db"),
]

ABSENT = [
    "amqp://u:s3cr3t-hush@127.0.0.1:1/v?management=http://call:s3cr3t-hush@127.0.0.1:1",
    "redis://u:s3cr3t-hush@127.0.0.1:1/0",
    "redis://127.0.0.1:1/0?password=s3cr3t-hush",
    "nats://s3cr3t-hush@127.0.0.1:1",
    "nats://127.0.0.1:1?nkeys_seed=s3cr3t-hush",
    "kafka://127.0.0.1:1?group=g&sasl.mechanism=PLAIN&sasl.username=u&sasl.password=s3cr3t-hush",
    "kafka+ssl://127.0.0.1:1?group=g&ssl.key.pem=s3cr3t-hush",
    "postgresql://u:s3cr3t-hush@127.0.0.1:1/db",
    "postgresql://127.0.0.1:1/db?user=u&password=s3cr3t-hush&sslpassword=s3cr3t-hush",
    "sqs://AKIA:s3cr3t-hush@?region=eu-west-1&endpoint=http://u:s3cr3t-hush@127.0.0.1:1",
]
"""Nobody listens at port 1."""


@dataclass
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """The command in this process: a new one for each of these URLs would take a minute."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return Said(int(ended.value.code), said.out, said.err)

    return run


@pytest.mark.parametrize(("url", "part"), WRONG)
def test_a_url_that_is_wrong_is_told_in_one_sentence(say, tmp_path, url, part):
    ended = say("publish", url, "orders", "1")
    assert ended.code == 1
    assert ended.err.startswith("Error: ")
    assert ended.err.count("\n") == 1
    assert part in ended.err
    assert SECRET not in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "code"), [("doctor", 1), ("publish", 2)])
def test_what_is_no_url_at_all_is_shown_without_its_password(say, command, code):
    ended = say(command, f"host=h user=u password={SECRET}", *(["orders"] if command == "publish" else []))
    assert ended.code == code
    assert SECRET not in ended.out + ended.err
    assert "host=h user=u password=***" in ended.err


@pytest.mark.parametrize("url", ABSENT)
def test_no_client_tells_the_password_of_a_server_that_is_not_there(say, url):
    ended = say("doctor", url, "--json")
    assert ended.code == 1
    assert ended.err.startswith("Error: ")
    assert ended.err.count("\n") == 1
    assert SECRET not in ended.out + ended.err
    with pytest.raises(UnpoisonError) as raised:
        findings_for(url)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_run_shows_no_password_while_it_waits_for_a_server(tmp_path):
    (tmp_path / "shop.py").write_text(
        "from unpoison import App\napp = App('postgresql://127.0.0.1:1/db?user=u&password=s3cr3t-hush')\n"
        "@app.consumer('orders')\ndef ship(order): ...\n"
    )
    with subprocess.Popen(
        [*UNPOISON, "run", "shop:app"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        line = process.stderr.readline()
        process.terminate()
        rest = process.stderr.read()
    assert "user=u&password=***" in line
    assert SECRET not in line + rest


MOVES = """
import os
from unpoison import App

app = App("sqlite:///shop.db")


@app.consumer("orders", concurrency=1)
def ship(order: int) -> None:
    app.publish("shipped", order)


if __name__ == "__main__":
    os.chdir("elsewhere")
    app.publish("orders", 1)
    app.run(until_empty=True)
"""


def test_workers_use_the_file_of_the_app_wherever_it_went(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "shop.py").write_text(MOVES)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    with closing(SQLiteBroker(f"sqlite:///{tmp_path}/shop.db")) as broker:
        broker.open([])
        assert broker.depth("shipped").ready == 1


def test_the_start_line_has_the_whole_path(tmp_path):
    (tmp_path / "shop.py").write_text(MOVES)
    ended = unpoison("run", "shop:app", "--until-empty", cwd=tmp_path)
    assert f"Consuming 'orders' from sqlite:///{tmp_path}/shop.db" in ended.err


@pytest.mark.parametrize("command", ["dlq ls --json", "dlq ls", "doctor"])
def test_an_output_that_is_full_is_told_in_one_sentence(tmp_path, command):
    url = dead_letters(tmp_path, b"1")
    more = [url] if command == "doctor" else ["--url", url, "--source", "orders"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*UNPOISON, *command.split(), *more], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: No space left on device: the disk of the output")
    assert ended.stderr.count("\n") == 1
