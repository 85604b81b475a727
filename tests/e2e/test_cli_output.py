"""What handlers print and log under `unpoison run`: in whole lines, nothing missing, in the form that was asked for."""

import json
import re
import signal
import subprocess
from contextlib import suppress

import pytest

from tests.e2e.command_line import COLOUR, UNPOISON, environment, on_terminal, unpoison
from unpoison import App

EVERY_WAY = """
import ctypes, os, subprocess, sys
from unpoison import App

print("imported")
app = App("sqlite:///shop.db")
libc = ctypes.CDLL(None)


@app.consumer("orders", concurrency=4)
def handle(body: bytes):
    number, text = int(body), body.decode()
    if number % 400 == 0:
        subprocess.run(["sh", "-c", "printf 'line '; printf $0; echo ' end'", text])
    elif number % 6 == 1:
        print("line", text, "long" * 5_000, "end")
    elif number % 6 == 2:
        print("line", text, "end", file=sys.stderr)
    elif number % 6 == 3:
        libc.printf(b"line %s end\\n", body)
    elif number % 6 == 4:
        os.write(1, b"line "), os.write(1, body), os.write(1, b" end\\n")
    else:
        print("line", text, "end")
"""


def publish(folder, *bodies):
    app = App(f"sqlite:///{folder / 'shop.db'}")
    app.publish_many("orders", bodies)
    app.close()


def numbers(text):
    """The numbers of all lines that came out whole; whatever else there is, is returned beside them."""
    found = [re.fullmatch(r"line (\d{5}) (?:(?:long){5000} )?end", line) for line in text.splitlines()]
    others = [line[:100] for line, match in zip(text.splitlines(), found, strict=True) if match is None]
    return sorted(match[1] for match in found if match), others


def app_file(folder, handler, options="", before=""):
    (folder / "shop.py").write_text(
        f"import logging, os, signal, sys, time\nfrom unpoison import App\n{before}\napp = App('sqlite:///shop.db')\n"
        f"@app.consumer('orders', {options})\ndef handle(body: bytes):\n    {handler}\n"
    )


UNBUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["", "PYTHONUNBUFFERED"])
WANTED = [f"{number:05}" for number in range(2_000)]
QUIET = ["run", "shop:app", "--until-empty", "--quiet"]


@UNBUFFERED
@pytest.mark.parametrize("where", ["pipe", "file"])
def test_lines_of_four_workers_come_out_whole_whoever_writes_them(tmp_path, where, unbuffered):
    (tmp_path / "shop.py").write_text(EVERY_WAY)
    publish(tmp_path, *WANTED)
    with (tmp_path / "log").open("wb") as file:
        ended = subprocess.run(
            [*UNPOISON, *QUIET],
            cwd=tmp_path,
            stdout=subprocess.PIPE if where == "pipe" else file,
            stderr=subprocess.STDOUT,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            timeout=60,
            check=True,
        )
    text = ended.stdout.decode() if where == "pipe" else (tmp_path / "log").read_text()
    assert numbers(text) == (WANTED, ["imported"])


@UNBUFFERED
def test_lines_of_four_workers_come_out_whole_on_a_terminal(tmp_path, unbuffered):
    handler = "print('line', body.decode(), 'end', file=sys.stderr if body.endswith(b'7') else sys.stdout)"
    app_file(tmp_path, handler, options="concurrency=4")
    publish(tmp_path, *WANTED)
    assert numbers(on_terminal(*QUIET, cwd=tmp_path, PYTHONUNBUFFERED=unbuffered).text) == (WANTED, [])


def test_nothing_that_was_printed_is_lost_when_a_worker_is_killed(tmp_path):
    app_file(
        tmp_path,
        "print('line', body.decode()); sys.stdout.write('begun ' + body.decode()); sys.stdout.flush(); os.kill(os.getpid(), 9)",
        options="max_attempts=1, concurrency=1",
    )
    publish(tmp_path, *"abc")
    ended = unpoison("run", "shop:app", "--until-empty", "--quiet", cwd=tmp_path)
    assert sorted(ended.text.splitlines()) == [f"{what} {body}" for what in ("begun", "line") for body in "abc"]


def test_no_message_fails_because_nobody_reads_what_its_handler_prints(tmp_path):
    app_file(tmp_path, "print('x' * 1000)", options="max_attempts=1")
    publish(tmp_path, *[b"1"] * 500)
    with subprocess.Popen(
        [*UNPOISON, "run", "shop:app", "--until-empty", "--fail-on-dead", "--log-format", "json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        process.stdout.close()
        lines = [json.loads(line) for line in process.stderr]
    assert [line["message"].split(".")[0] for line in lines if line["event"] == "output"] == [
        "Writing to standard output failed: Broken pipe"
    ]
    assert [line for line in lines if line["event"] in ("retry", "dead")] == []


def test_a_program_that_outlives_its_worker_does_not_keep_the_consumer(tmp_path):
    app_file(tmp_path, "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)")
    publish(tmp_path, b"1")
    ended = unpoison("run", "shop:app", "--until-empty", "--quiet", cwd=tmp_path)
    subprocess.run(["kill", ended.text.strip()], check=True)
    assert ended.code == 0


LOG = "logging.getLogger('shop').info('shipping %s', body.decode(), extra={'order': 7}); logging.debug('details')"


@pytest.mark.parametrize("isolation", ["process", "thread", "inline"])
def test_what_handlers_log_obeys_the_command_line(tmp_path, isolation):
    app_file(tmp_path, LOG, options=f"isolation={isolation!r}")
    publish(tmp_path, b"1")
    lines = [json.loads(line) for line in run(tmp_path, "--log-format", "json").err.splitlines()]
    assert [
        (line["level"], line["logger"], line["message"], line.get("order")) for line in lines if line["logger"] != "unpoison"
    ] == [("info", "shop", "shipping 1", 7)]
    publish(tmp_path, b"2")
    told = run(tmp_path, "--log-level", "debug").err
    assert re.search(r"^\d{4}-\S+ debug root: details \[source=orders message_id=\S+ attempt=1\]$", told, re.MULTILINE)


def test_handlers_log_no_less_important_lines_than_asked_for(tmp_path):
    app_file(tmp_path, LOG)
    publish(tmp_path, b"1")
    assert run(tmp_path, "--log-level", "warning").err == ""


def run(folder, *arguments):
    ended = unpoison("run", "shop:app", "--until-empty", *arguments, cwd=folder)
    assert ended.code == 0
    return ended


SETUPS = {
    "basicConfig": "logging.basicConfig(format='MINE %(levelname)s %(message)s', level='DEBUG')",
    "dictConfig": "import logging.config\nlogging.config.dictConfig({'version': 1, "
    "'root': {'handlers': ['a'], 'level': 'DEBUG'}, 'handlers': {'a': {'class': 'logging.StreamHandler', 'formatter': 'a'}}, "
    "'formatters': {'a': {'format': 'MINE %(levelname)s %(message)s'}}})",
}


@pytest.mark.parametrize(
    ("setup", "isolation"), [("basicConfig", "process"), ("basicConfig", "thread"), ("dictConfig", "thread")]
)
def test_an_app_that_sets_up_logging_wins_and_the_lines_of_unpoison_stay_json(tmp_path, setup, isolation):
    app_file(tmp_path, LOG + "; raise ValueError", options=f"isolation={isolation!r}", before=SETUPS[setup])
    publish(tmp_path, b"1")
    lines = run(tmp_path, "--log-format", "json").err.splitlines()
    assert [line for line in lines if not line.startswith("{")] == ["MINE INFO shipping 1", "MINE DEBUG details"]
    assert [json.loads(line)["event"] for line in lines if line.startswith("{")] == ["start", "dead"]


def test_logging_can_be_set_up_when_a_worker_starts(tmp_path):
    app_file(tmp_path, LOG)
    with (tmp_path / "shop.py").open("a") as file:
        file.write("\n@app.on_worker_start\ndef start():\n    logging.basicConfig(format='MINE %(message)s')\n")
    publish(tmp_path, b"1")
    assert "MINE shipping 1\n" in run(tmp_path).err


def test_a_handler_that_logs_on_import_or_by_the_root_logger_has_set_up_nothing(tmp_path):
    """`logging.warning(…)` makes a handler for the root logger where there is none."""
    app_file(tmp_path, LOG, before="logging.warning('on import')", options="concurrency=1")
    publish(tmp_path, b"1")
    lines = run(tmp_path, "--log-format", "json", "--log-level", "debug").err.splitlines()
    assert [line for line in lines if not line.startswith("{")] == ["WARNING:root:on import"]
    assert {json.loads(line)["message"] for line in lines[1:]} >= {"shipping 1", "details"}


def test_log_lines_of_handlers_are_in_colour_on_a_terminal_only(tmp_path):
    app_file(tmp_path, "logging.warning('careful')")
    publish(tmp_path, b"1")
    shown = on_terminal("run", "shop:app", "--until-empty", "--log-level", "warning", cwd=tmp_path, TERM="dumb").text
    line = next(line for line in shown.splitlines() if "careful" in line)
    assert line != COLOUR.sub("", line)
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning careful \[source=orders message_id=\S+ attempt=1\]", COLOUR.sub("", line))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_no_process_is_left_behind_by_a_consumer_that_ends(tmp_path, how):
    """The thread that passes on what workers print keeps nobody."""
    app_file(tmp_path, "print(os.getpid(), flush=True); time.sleep(600)", options="concurrency=1")
    publish(tmp_path, b"1")
    with subprocess.Popen(
        [*UNPOISON, "run", "shop:app", "--quiet"], cwd=tmp_path, stdout=subprocess.PIPE, env=environment()
    ) as process:
        worker = int(process.stdout.readline())
        for _ in range(100):  # the second one ends it at once; two of a kind that come together are one
            process.send_signal(how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.3)
                break
        assert process.stdout.read() == b""  # the other end is closed: whoever could write to it is gone
    assert worker
