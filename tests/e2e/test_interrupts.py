"""Ctrl-C while the app is still being imported: the program ends as quietly as it does later."""

import signal
import subprocess
import sys
import time

import pytest

SHOP = """
import pathlib, time
from unpoison import App

app = App("sqlite:///shop.db")

@app.consumer("orders")
def handle(order): ...

if __name__ == "__main__":
    print("stopped by", app.run().stopped_by)
else:
    pathlib.Path("importing").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [(["shop.py"], 0, "stopped by 2"), (["-m", "unpoison", "run", "shop.py:app"], 130, "")],
    ids=["app.run()", "unpoison run"],
)
def test_ctrl_c_during_the_import_of_the_app_shows_no_traceback_and_leaves_no_process(tmp_path, command, code, said):
    (tmp_path / "shop.py").write_text(SHOP)
    process = subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(tmp_path / "importing", process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)  # a template that lives on would hold the pipe open
    assert (process.returncode, output.strip()) == (code, said)


TWICE = """
import logging, os, pathlib, signal, time
from unpoison import App

app = App("sqlite:///shop.db", grace=3600)
messages = []

class SignalAgain(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())
        if "draining" in messages[-1]:
            os.kill(os.getpid(), signal.SIGTERM)

@app.consumer("orders")
def handle(order):
    pathlib.Path("started").touch()
    time.sleep(3600)

if __name__ == "__main__":
    app.publish("orders", 1)
    logging.getLogger("unpoison").addHandler(SignalAgain())
    logging.getLogger("unpoison").setLevel(logging.INFO)
    app.run()
    print(*(message for message in messages if message.startswith("SIGTERM")), sep="\\n")
"""


def test_a_second_signal_while_the_first_is_being_handled_stops_at_once(tmp_path):
    (tmp_path / "shop.py").write_text(TWICE)
    process = subprocess.Popen([sys.executable, "shop.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "started", process)
    process.send_signal(signal.SIGTERM)
    try:
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert output.splitlines() == [
        "SIGTERM: draining for up to 3600 s; a second signal stops at once.",
        "SIGTERM: stopping now.",
    ]


def wait_for(file, process):
    until = time.monotonic() + 60
    while not file.exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
