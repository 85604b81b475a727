"""A DLQ by its own name on the command line: looked at, collected, worked on in the store and sent back."""

import json

import pytest
import redis as client

from tests.e2e.command_line import dead_letters, in_this_process, unpoison
from unpoison.app import App
from unpoison.errors import ConfigError

SHOP = """
from unpoison import App

app = App({url!r}, store="sqlite:///store.db")

@app.consumer("orders", dlq="orders:failed", isolation="inline")
def handle(order):
    raise ValueError("no")
"""


def letter(number, source="orders"):
    failed = {"error": "ValueError: no", "failed_at": 1_785_000_000 + number}
    told = {"original_topic": source, "original_value": {"n": number}, **failed}
    return json.dumps(told).encode()


@pytest.fixture
def place(redis, tmp_path):
    """A list of another program, with letters of two sources."""
    url = redis.fresh()
    with client.Redis.from_url(url) as tool:
        tool.xadd("orders", {"body": b"before"})
        tool.xadd("mail", {"body": b"before"})
        for number in (1, 2):
            tool.lpush("failed", letter(number))
        tool.lpush("failed", letter(3, "mail"))
        yield url, tool


def test_a_dlq_of_others_is_looked_at_without_a_store(place, tmp_path):
    url, tool = place
    shown = in_this_process("dlq", "ls", "--url", url, "--dlq", "failed", "--json", cwd=tmp_path)
    assert sorted((each["source"], each["body"]) for each in shown.json) == [
        ("mail", '{"n": 3}'),
        ("orders", '{"n": 1}'),
        ("orders", '{"n": 2}'),
    ]
    count = in_this_process("dlq", "count", "--url", url, "--dlq", "failed", "--where", "source:orders", cwd=tmp_path)
    assert count.text.startswith("failed: 2 dead")
    missing = in_this_process("dlq", "show", "nothing", "--url", url, "--dlq", "failed", cwd=tmp_path)
    assert (missing.code, "'nothing' of 'failed' does not exist" in missing.err) == (1, True)
    replayed = in_this_process("dlq", "replay", "--url", url, "--dlq", "failed", "--where", "source:mail", "--yes", cwd=tmp_path)
    assert (replayed.code, tool.llen("failed"), tool.xlen("mail")) == (0, 2, 2)


def test_a_dlq_of_others_is_collected_and_worked_on_in_the_store(place, tmp_path):
    url, tool = place
    there = ("--url", url, "--store", f"sqlite:///{tmp_path}/store.db", "--dlq", "failed")

    def run(*arguments):
        done = in_this_process(*arguments, *there, cwd=tmp_path)
        assert done.code == 0, done.err
        return done

    assert run("collect", "--once").text == "failed: 3 dead letters moved into the store.\n"
    assert (tool.llen("failed"), run("collect", "--once").text) == (0, "failed: 0 dead letters moved into the store.\n")
    shown = run("dlq", "ls", "--json").json
    assert sorted(each["source"] for each in shown) == ["mail", "orders", "orders"]
    assert sum(each["count"] for each in run("dlq", "groups", "--json").json) == 3
    run("dlq", "note", shown[0]["id"], "look at this")
    assert run("dlq", "show", shown[0]["id"], "--json").json["note"] == "look at this"
    exported = run("dlq", "export")
    assert len(exported.out.splitlines()) == 3
    run("dlq", "discard", "--where", "source:mail", "--yes")
    assert run("dlq", "replay", "--all", "--yes").text == "Replayed 2 dead letters.\n"
    assert run("dlq", "count").text == "failed: 0 dead, 2 replayed, 1 discarded\n"
    assert [fields[b"body"] for _, fields in tool.xrange("orders")][1:] == [b'{"n": 1}', b'{"n": 2}']
    assert tool.xlen("mail") == 1


def test_the_dlq_that_a_consumer_names_is_that_of_its_source_everywhere(place, tmp_path):
    url, tool = place
    (tmp_path / "shop.py").write_text(SHOP.format(url=url))
    done = unpoison("run", "shop:app", "--until-empty", "--json", cwd=tmp_path)
    assert done.json["total"]["dead"] == 1, done.err
    assert (tool.xlen("orders:failed"), tool.exists("dlq:orders")) == (1, 0)
    assert in_this_process("dlq", "count", "--app", "shop:app", cwd=tmp_path).text.startswith("orders: 1 dead")
    named = in_this_process("dlq", "count", "--url", url, "--source", "orders", "--dlq", "orders:failed", cwd=tmp_path)
    assert named.text.startswith("orders: 1 dead")
    ours = in_this_process("dlq", "ls", "--url", f"{url}?dlq=orders:orders:failed", "--dlq", "orders:failed", cwd=tmp_path)
    assert (ours.code, "--source orders" in ours.err) == (1, True)
    doctor = in_this_process("doctor", "shop:app", "--json", cwd=tmp_path)
    assert "orders:failed" in in_this_process("plan-topology", "shop:app", "--user", "shop", cwd=tmp_path).text
    assert doctor.code in (0, 1)


def test_what_cannot_have_a_name_says_so(tmp_path):
    url = dead_letters(tmp_path, b"1")
    shown = in_this_process("dlq", "ls", "--url", url, "--dlq", "orders.DLT", cwd=tmp_path)
    assert (shown.code, "rows beside the messages of their source" in shown.err) == (1, True)
    app = App(url)
    with pytest.raises(ConfigError, match="have no name of their own"):
        app.consumer("orders", dlq="orders.DLT")(print)
    with pytest.raises(ConfigError, match="must have a name"):
        App("redis://h").consumer("orders", dlq="")(print)
    shop = App("redis://h")
    shop.consumer("orders", dlq="lost", isolation="inline")(print)
    with pytest.raises(ConfigError, match="would share 'lost'"):
        shop.consumer("mail", dlq="lost", isolation="inline")(print)
