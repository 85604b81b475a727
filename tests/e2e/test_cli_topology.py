"""What does `unpoison plan-topology` print, on whatever broker?"""

import subprocess

import pytest

from tests.e2e.command_line import unpoison

APP = """
from unpoison import App

app = App({url!r})

@app.consumer({source!r})
def ship(order: dict) -> None: ...
"""
NOBODY = "127.0.0.1:1"
"""Nothing listens there."""

BROKERS = {
    "amqp": f"amqp://shop:pa55word@{NOBODY}/shop",
    "kafka": f"kafka://shop:pa55word@{NOBODY}?group=billing",
    "nats": f"nats://shop:pa55word@{NOBODY}",
    "postgresql": f"postgresql://shop:pa55word@{NOBODY}/shop",
    "redis": f"redis://shop:pa55word@{NOBODY}/3",
    "sqs": f"sqs://shop:pa55word@?endpoint=http://{NOBODY}&region=eu-west-1",
}
UNREACHABLE = pytest.mark.parametrize("url", BROKERS.values(), ids=BROKERS)


@pytest.fixture
def write(tmp_path):
    def app(name, url, source="orders"):
        (tmp_path / f"{name}.py").write_text(APP.format(url=url, source=source))
        return tmp_path

    return app


def checked(script):
    """The shell can read it. Gives its lines."""
    ended = subprocess.run(["sh", "-n"], input=script, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    return script.decode().splitlines()


@UNREACHABLE
def test_everything_is_printed_where_nobody_answers(write, url):
    ended = unpoison("plan-topology", "shop:app", cwd=write("shop", url))
    assert ended.code == 0, ended.err
    lines = checked(ended.out)
    assert lines[0] == "#!/bin/sh"
    assert "set -eu" in lines
    assert any(line.startswith("# What exists is unknown, so everything is printed: ") for line in lines)
    assert ended.err.startswith("Warning: What exists at ")
    assert "To be created or granted: " in ended.err
    assert "pa55word" not in ended.text + ended.err
    named = unpoison("plan-topology", "shop:app", "--user", "it's me", "--json", cwd=write("shop", url)).json["brokers"][0]
    assert named["unseen"]
    assert named["missing"] == len(named["steps"])
    rights = [step for step in named["steps"] if step["kind"] == "rights"]
    assert {step["name"] for step in rights} == {"it's me"}
    assert set(named["steps"][0]) == {"kind", "name", "why", "commands", "exists"}


def test_apps_on_several_brokers_are_one_script_and_those_on_one_share_a_part(write):
    write("shop", BROKERS["amqp"])
    write("files", "sqlite:///shop.db")
    folder = write("mail", BROKERS["amqp"], "letters")
    ended = unpoison("plan-topology", "shop:app", "mail", "files:app", "--json", cwd=folder)
    assert [(each["targets"], each["sources"]) for each in ended.json["brokers"]] == [
        (["shop:app", "mail"], ["orders", "letters"]),
        (["files:app"], ["orders"]),
    ]
    names = [step["name"] for step in ended.json["brokers"][0]["steps"]]
    assert names.count("orders.dlq") == names.count("letters.dlq") == names.count("unpoison.delay.0") == 1
    script = checked(unpoison("plan-topology", "shop:app", "mail", "files:app", cwd=folder).out)
    assert script[1] == "# What shop:app, mail, files:app needs at its brokers."


def test_an_app_that_would_create_is_told_to_create_nothing(write):
    told = unpoison("plan-topology", "shop:app", cwd=write("shop", BROKERS["amqp"])).text
    assert "App(…, create=False) or UNPOISON_CREATE=false." in " ".join(told.replace("#", "").split())
    folder = write("shop", BROKERS["amqp"])
    told = unpoison("plan-topology", "shop:app", cwd=folder, UNPOISON_CREATE="false").text
    assert "UNPOISON_CREATE" not in told


def test_a_file_needs_nothing_and_that_is_said(write):
    ended = unpoison("plan-topology", "shop:app", cwd=write("shop", "sqlite:///shop.db"))
    assert (ended.code, ended.err) == (
        0,
        "Nothing is missing: everything that these sources need exists, and the user may use it.\n",
    )
    assert checked(ended.out)[-1] == "# Nothing is missing here."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Name an app: give module:app, or a URL with --source NAME, or set UNPOISON_URL."),
        (("amqp://host",), "Name the sources of amqp://host with --source NAME, or give module:app."),
        (("shop:app", "--source", "odrers"), "No app has a consumer of 'odrers'. Their sources: 'orders'."),
    ],
)
def test_wrong_usage_says_what_to_give(write, arguments, said):
    ended = unpoison("plan-topology", *arguments, cwd=write("shop", "sqlite:///shop.db"))
    assert (ended.code, ended.out) == (2, b"")
    assert said in " ".join(ended.err.split())


def test_a_url_is_enough_where_the_app_is_not_at_hand(tmp_path):
    ended = unpoison("plan-topology", "--source", "orders", cwd=tmp_path, UNPOISON_URL=BROKERS["amqp"])
    assert ended.code == 0
    assert "# RabbitMQ at amqp://127.0.0.1:1/shop, for 'orders'." in checked(ended.out)
