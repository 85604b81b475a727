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
    until = time.monotonic() + 60
    while not (tmp_path / "importing").exists():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)  # a template that lives on would hold the pipe open
    assert (process.returncode, output.strip()) == (code, said)
