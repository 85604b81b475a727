import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.e2e.command_line import COLOUR, SHOP, UNPOISON, environment, on_terminal, ready, unpoison
from tests.unit.stores import opened, paused
from unpoison import App
from unpoison.brokers import broker_for

NOTHING = {"done": 0, "retried": 0, "dead": 0, "discarded": 0, "released": 0}


@pytest.fixture
def shop(tmp_path):
    """The example, with its orders published."""
    for name in ("shop.py", "orders.jsonl"):
        shutil.copy(SHOP / name, tmp_path)
    assert unpoison("publish", "sqlite:///shop.db", "orders", "--file", "orders.jsonl", cwd=tmp_path).code == 0
    return tmp_path


def app_file(folder, name, handler, source="orders", options=""):
    (folder / name).write_text(
        f"from unpoison import App, Backoff, Discard\napp = App('sqlite:///shop.db')\n"
        f"@app.consumer({source!r}, {options})\ndef handle(body: bytes):\n    {handler}\n"
    )


def publish(folder, *bodies, source="orders"):
    app = App(f"sqlite:///{folder / 'shop.db'}")
    app.publish_many(source, bodies)
    app.close()


def depth(folder, source="orders"):
    broker = broker_for(f"sqlite:///{folder / 'shop.db'}")
    broker.open([source])
    try:
        return broker.depth(source)
    finally:
        broker.close()


def test_the_example_runs_until_it_is_empty_and_says_what_happened(shop):
    ended = unpoison("run", "shop:app", "--until-empty", cwd=shop)
    assert ended.code == 0
    assert "orders   3 done, 2 dead, 1 discarded, 0 retried\n" in ended.text
    assert "emails   3 done, 0 dead, 0 discarded, 3 retried\n" in ended.text
    assert "To see the dead letters: unpoison dlq ls --app shop:app\n" in ended.text
    assert "to ada@example.org: book is on its way" in ended.text
    assert depth(shop, "orders").empty
    assert depth(shop, "emails").empty


def test_the_readme_of_the_example_is_true(shop):
    commands = [line.split()[1:] for line in (SHOP / "README.md").read_text().splitlines() if line.startswith("    unpoison")]
    assert commands[0] == ["publish", "sqlite:///shop.db", "orders", "--file", "orders.jsonl"]
    for command in commands[1:3]:
        assert unpoison(*command, cwd=shop).code == 0
    (shop / "shop.py").write_text((shop / "shop.py").read_text().replace('"lamp": 30.0', '"lamp": 30.0, "piano": 900.0'))
    assert "KeyError: 'piano'" in unpoison(*commands[3], cwd=shop).text
    assert unpoison(*commands[4], cwd=shop).text == "Replayed orders-1.\n"
    assert "to grace@example.org: piano is on its way, 900.00 €" in unpoison(*commands[5], cwd=shop).text


def test_json_is_the_only_thing_on_standard_output(shop):
    ended = unpoison("run", "shop.py:app", "--until-empty", "--json", cwd=shop)
    assert ended.json["sources"]["orders"] == NOTHING | {"done": 3, "dead": 2, "discarded": 1}
    assert ended.json["sources"]["refunds"] == NOTHING
    assert ended.json["total"] == NOTHING | {"done": 6, "dead": 2, "discarded": 1, "retried": 3}
    assert "to ada@example.org" in ended.err


def test_dead_letters_are_a_failure_only_if_asked_for(tmp_path):
    app_file(tmp_path, "bad.py", "raise ValueError(body)")
    publish(tmp_path, b"1")
    failed = unpoison("run", "bad:app", "--until-empty", "--fail-on-dead", cwd=tmp_path)
    assert failed.code == 1
    assert failed.err.splitlines()[-1].startswith("Error: 1 message became a dead letter")
    assert unpoison("run", "bad:app", "--until-empty", "--fail-on-dead", cwd=tmp_path).code == 0


def test_several_apps_run_together(tmp_path):
    app_file(tmp_path, "one.py", "pass", source="orders")
    app_file(tmp_path, "two.py", "pass", source="emails")
    publish(tmp_path, b"1", b"2")
    publish(tmp_path, b"3", source="emails")
    sources = unpoison("run", "one:app", "two", "--until-empty", "--json", cwd=tmp_path).json["sources"]
    assert {source: tally["done"] for source, tally in sources.items()} == {"orders": 2, "emails": 1}


def test_sigterm_lets_the_running_message_finish_and_hands_the_others_back(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    handler = f"(print('started', flush=True), open({str(gate)!r}).read()) if body == b'first' else time.sleep(0.001)"
    app_file(tmp_path, "slow.py", f"import time; {handler}", options="concurrency=1")
    publish(tmp_path, b"first", *[b"later"] * 5_000)
    with subprocess.Popen(
        [*UNPOISON, "run", "slow:app", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        _wait_for(process.stderr, b"started")
        process.send_signal(signal.SIGTERM)
        _wait_for(process.stderr, b"SIGTERM: draining")
        gate.open("w").close()  # the handler goes on once somebody has opened the other end
        out, _ = process.communicate(timeout=60)
    total = json.loads(out)["total"]
    rest = ready(tmp_path)
    assert process.returncode == 0
    assert (total["dead"], total["retried"]) == (0, 0)
    assert 1 <= total["done"] < 5_000
    assert total["done"] + len(rest) == 5_001
    assert b"first" not in [delivery.body for delivery in rest]
    assert {(delivery.attempt, delivery.returned) for delivery in rest} == {(1, False)}


def _wait_for(stream, text):
    for line in stream:
        if text in line:
            return
    pytest.fail(f"it ended without saying {text!r}")


@pytest.mark.parametrize(
    ("code", "said", "place", "remedy"),
    [
        (
            "import os\nfrom unpoison import App\napp = App(os.environ['NOT_THERE'])\n",
            "KeyError: 'NOT_THERE'",
            "line 3: app =",
            "python -c",
        ),
        ("from unpoison import App\napp = App('sqlite:///x.db'\n", "SyntaxError", "line 2: app =", "Fix it"),
        ("import no_such_package\n", "No module named 'no_such_package'", "line 1: import no_such_package", "Install"),
        ("import sys\n\nsys.exit('no config')\n", "SystemExit: no config", "line 3: sys.exit", "__main__"),
        ("from unpoison import App\napp = App('shop.db')\n", "names no broker", "line 2: app = App('shop.db')", "sqlite:///"),
        ("from json import loads\nloads('{')\n", "JSONDecodeError", "line 2: loads('{')", "Fix it"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["dlq", "ls", "--app"]], ids=["run", "dlq"])
def test_an_app_that_fails_while_it_is_imported_is_one_clear_error(tmp_path, command, code, said, place, remedy):
    (tmp_path / "broken.py").write_text(code)
    ended = unpoison(*command, "broken:app", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: ")
    assert said in ended.err
    assert f"{tmp_path / 'broken.py'}, {place}" in ended.err
    assert remedy in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nowhere:app", "There is no module 'nowhere'"),
        ("nowhere.py:app", "There is no file 'nowhere.py'"),
        ("named:app", "'named' has no App named 'app'. It has shop."),
        ("named:shop", "The app has no consumer"),
        (":app", "Write module:app"),
    ],
)
def test_an_app_that_is_not_there_is_one_clear_error(tmp_path, reference, said):
    (tmp_path / "named.py").write_text("from unpoison import App\nshop = App('sqlite:///shop.db')\napp = 3\n")
    ended = unpoison("run", reference, cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: ")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_log_lines_as_json_have_the_fields_that_belong_to_them(tmp_path):
    app_file(tmp_path, "bad.py", "raise ValueError('\\x1b[2J')")
    publish(tmp_path, b"1")
    ended = unpoison("run", "bad:app", "--until-empty", "--log-format", "json", cwd=tmp_path)
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert {"start", "dead"} <= {line["event"] for line in lines}
    dead = next(line for line in lines if line["event"] == "dead")
    assert (dead["level"], dead["logger"], dead["source"]) == ("error", "unpoison", "orders")
    assert {"time", "message", "message_id", "rule", "fingerprint"} <= set(dead)
    assert "\x1b" not in ended.err


def test_a_log_line_cannot_be_forged_by_a_message(tmp_path):
    app_file(tmp_path, "bad.py", "raise Discard(body.decode())")
    publish(tmp_path, b"ok\n2026-01-01 info unpoison: all is well\x1b[2J")
    ended = unpoison("run", "bad:app", "--until-empty", cwd=tmp_path)
    assert r"ok\n2026-01-01 info unpoison: all is well\x1b[2J" in ended.err


def test_less_is_logged_when_asked(tmp_path):
    app_file(tmp_path, "good.py", "pass")
    publish(tmp_path, b"1")
    assert "Consuming 'orders'" in unpoison("run", "good:app", "--until-empty", cwd=tmp_path).err
    assert unpoison("run", "good:app", "--until-empty", "--log-level", "warning", cwd=tmp_path).err == ""
    quiet = unpoison("run", "good:app", "--until-empty", "--quiet", cwd=tmp_path)
    assert (quiet.code, quiet.text, quiet.err) == (0, "", "")


def test_on_a_terminal_the_last_line_tells_how_far_it_is(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    app_file(tmp_path, "slow.py", f"open({str(gate)!r}).read()", options="concurrency=1")
    publish(tmp_path, b"1")
    line = b"0 done, 0 dead, 0 discarded, 0 retried"
    ended = on_terminal("run", "slow:app", "--until-empty", cwd=tmp_path, once=(line, lambda: gate.open("w").close()))
    assert ended.code == 0
    assert "\x1b[1;39r" in ended.text  # 40 lines, of which the last does not scroll
    assert ended.text.index("\x1b[r") < ended.text.index("orders  1 done, 0 dead")


def test_a_long_log_line_is_broken_between_words_on_a_terminal(tmp_path):
    app_file(tmp_path, "good.py", "pass")
    ended = on_terminal("run", "good:app", "--until-empty", cwd=tmp_path, columns=60, TERM="dumb")
    lines = COLOUR.sub("", ended.text).splitlines()
    assert lines[0].split()[1:4] == ["info", "Consuming", "'orders'"]
    assert all(len(line) <= 60 or line.strip().startswith("sqlite:///") for line in lines)  # a path stays in one piece
    assert lines[1].startswith(" " * 17)


def test_a_variable_that_is_no_setting_is_one_line_of_warning(tmp_path):
    app_file(tmp_path, "good.py", "pass")
    ended = unpoison("dlq", "ls", "--app", "good:app", cwd=tmp_path, UNPOISON_GRAZE="1")
    assert "Warning: UNPOISON_GRAZE is not a setting of unpoison and is ignored." in ended.err.splitlines()[0]


def test_run_without_an_app_is_wrong_usage(tmp_path):
    assert unpoison("run", cwd=tmp_path).code == 2


def test_what_an_app_prints_on_import_or_in_this_process_does_not_mix_with_json(tmp_path):
    (tmp_path / "loud.py").write_text(
        "from unpoison import App\n"
        "print('imported')\n"
        "app = App('sqlite:///shop.db')\n"
        "@app.consumer('orders', isolation='thread')\n"
        "def ship(order: dict) -> None: print('shipping')\n"
    )
    assert unpoison("publish", "sqlite:///shop.db", "orders", "{}", cwd=tmp_path).code == 0
    ended = unpoison("run", "loud:app", "--until-empty", "--json", cwd=tmp_path)
    assert ended.json["total"]["done"] == 1
    assert "shipping" in ended.err
    assert unpoison("dlq", "ls", "--app", "loud:app", "--json", cwd=tmp_path).json == []


def test_events_in_json_tell_everything_about_a_retry_and_a_dead_letter(tmp_path):
    app_file(tmp_path, "bad.py", "raise ConnectionError", options="max_attempts=2, backoff=Backoff.exponential(base=0.01)")
    publish(tmp_path, b"1")
    ended = unpoison("run", "bad", "--until-empty", "--log-format", "json", cwd=tmp_path)
    retry, dead = [line for line in map(json.loads, ended.err.splitlines()) if line["event"] in ("retry", "dead")]
    same = {"source": "orders", "app": "bad:app", "classification": "transient", "error_type": "ConnectionError"}
    assert same.items() <= retry.items()
    assert same.items() <= dead.items()
    assert (retry["event"], retry["attempt"], retry["charged"], type(retry["delay"])) == ("retry", 1, True, float)
    assert (dead["event"], dead["attempt"], dead["letter_id"]) == ("dead", 2, "orders-1")
    assert retry["message_id"] == dead["message_id"]
    assert retry["rule"] in retry["message"]
    assert dead["message"] == (
        f"Message {dead['message_id']!r} on 'orders' is a dead letter after attempt 2. ConnectionError (transient; attempt "
        "2 of 2 failed, the limit set by the consumer). Inspect: unpoison dlq show orders-1"
    )
    assert dead["rule"].startswith("max-attempts")


def test_two_apps_with_a_source_of_the_same_name_are_told_apart(tmp_path):
    for name, handler in (("one", "raise ConnectionError"), ("two", "raise ValueError")):
        app_file(tmp_path, f"{name}.py", handler, options="max_attempts=2, backoff=Backoff.exponential(base=0.01)")
        (tmp_path / f"{name}.py").write_text((tmp_path / f"{name}.py").read_text().replace("shop.db", f"{name}.db"))
        app = App(f"sqlite:///{tmp_path / name}.db")
        app.publish("orders", b"1")
        app.close()
    text = unpoison("run", "one:app", "two:app", "one", "--until-empty", cwd=tmp_path)
    assert "on 'orders (one:app)' failed in attempt 1" in text.err
    assert "on 'orders (two:app)' is a dead letter" in text.err
    assert "Consuming 'orders (two:app)' from" in text.err
    assert text.text.splitlines() == [
        "orders (one:app)  0 done, 1 dead, 0 discarded, 1 retried",
        "orders (two:app)  0 done, 1 dead, 0 discarded, 0 retried",
        "To see the dead letters: unpoison dlq ls --app one:app",
        "To see the dead letters: unpoison dlq ls --app two:app",
    ]
    again = unpoison("run", "one:app", "two:app", "--until-empty", "--json", "--log-format", "json", cwd=tmp_path)
    assert set(again.json["sources"]) == {"orders (one:app)", "orders (two:app)"}
    lines = [json.loads(line) for line in again.err.splitlines()]
    assert {(line["source"], line["app"]) for line in lines} == {("orders", "one:app"), ("orders", "two:app")}


def interrupted(folder, *arguments, once, **variables):
    """The command, in a process group of its own that gets SIGINT, as by Ctrl-C, once `once` is true of what it has written."""
    with subprocess.Popen(
        [*UNPOISON, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(PYTHONUNBUFFERED="1", **variables),
        process_group=0,
    ) as process:
        written = b""
        while once not in written and (more := os.read(process.stdout.fileno(), 65536)):
            written += more
        os.killpg(process.pid, signal.SIGINT)
        written += process.stdout.read()
        process.wait(60)
    assert b"Traceback" not in written
    return process.returncode, written.decode()


def test_ctrl_c_drains_and_ends_with_130(tmp_path):
    app_file(tmp_path, "slow.py", "import time; print('started', flush=True); time.sleep(0.1)", options="concurrency=1")
    publish(tmp_path, *[b"1"] * 1000)
    code, text = interrupted(tmp_path, "run", "slow:app", once=b"started")
    assert code == 130
    assert "SIGINT: draining for up to 25 s" in text
    assert re.search(r"^orders  \d+ done, 0 dead", text, re.MULTILINE)
    assert {(delivery.attempt, delivery.returned) for delivery in ready(tmp_path)} == {(1, False)}


def test_ctrl_c_while_an_app_is_imported_is_no_traceback(tmp_path):
    (tmp_path / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    for command in (["run"], ["dlq", "ls", "--app"], ["doctor"]):
        assert interrupted(tmp_path, *command, "slow:app", once=b"importing")[0] == 130


def test_ctrl_c_while_the_template_starts_is_no_traceback(tmp_path):
    """Before any code of ours runs in it, so that nothing but its process group keeps the signal away."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nif 'unpoison.programs.template' in sys.orig_argv:\n    print('starting')\n    time.sleep(0.5)\n"
    )
    app_file(tmp_path, "good.py", "pass")
    assert interrupted(tmp_path, "run", "good:app", once=b"starting", PYTHONPATH=str(tmp_path))[0] == 130


def started(folder, *arguments, **variables):
    command = [*UNPOISON, "run", "shop:app", "--until-empty", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment(**variables), stderr=subprocess.PIPE, text=True)


def next_line(process, *words):
    """The next line that has these words in it."""
    return next(line for line in process.stderr if all(word in line for word in words))


def test_until_empty_says_that_it_waits_for_a_delayed_message(tmp_path):
    app_file(tmp_path, "shop.py", "pass")
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    app.publish("orders", b"1", delay=3_600)
    app.close()
    with started(tmp_path) as process:
        line = next_line(process, "is not empty yet")
        process.terminate()
    assert "Source 'orders' is not empty yet: 1 message is delayed, the next one until 20" in line
    assert line.rstrip().endswith("from now.")


def test_until_empty_says_who_holds_what_it_waits_for_in_json_too(tmp_path):
    app_file(tmp_path, "shop.py", "pass")
    publish(tmp_path, b"1", b"2")
    broker = broker_for(f"sqlite:///{tmp_path / 'shop.db'}")
    broker.open(["orders"])
    assert len(broker.fetch("orders", 10)) == 2
    with started(tmp_path, "--log-format", "json") as process:
        told = json.loads(next_line(process, "is not empty yet"))
        broker.close()
        takeover = json.loads(next_line(process, "came back"))
        process.stderr.read()
    assert process.returncode == 0
    me = f"{socket.gethostname()}:{os.getpid()}"
    assert (told["event"], told["source"], told["held"], told["holders"]) == ("waiting", "orders", 2, [me])
    assert told["message"] == f"Source 'orders' is not empty yet: 2 messages are held by {me}."
    assert (takeover["event"], takeover["count"], takeover["from_consumer"]) == ("takeover", 2, me)


IMPATIENT = "import unpoison.flow.run; unpoison.flow.run.PAUSE_LIMIT = 0.5; from unpoison.cli.main import main; main()"


@pytest.mark.parametrize("arguments", [[], ["--log-format", "json"]])
def test_until_empty_ends_with_1_and_one_sentence_if_a_source_stays_paused(tmp_path, arguments):
    (tmp_path / "shop.py").write_text(
        "from unpoison import App\napp = App('redis://127.0.0.1:1/0')\n@app.consumer('orders')\ndef handle(body: bytes): pass\n"
    )
    command = [sys.executable, "-c", IMPATIENT, "run", "shop:app", "--until-empty", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("Error: Source 'orders' has been paused for ")
    assert "no message is lost" in last
    assert last.endswith("Fix that and run it again.")


def test_until_empty_ends_with_1_and_says_who_has_paused_the_source(tmp_path):
    app_file(tmp_path, "shop.py", "print('started')")
    publish(tmp_path, b"1")
    store = opened(f"sqlite:///{tmp_path}/shop.db")
    store.pause(paused(reason="billing moves", by="ada@desk"))
    store.close()
    command = [sys.executable, "-c", IMPATIENT, "run", "shop:app", "--until-empty"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("Error: Source 'orders' has been paused for ")
    assert "It is paused by ada@desk since " in last
    assert "billing moves" in last
    assert "started" not in ended.stdout
