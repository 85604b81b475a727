"""`unpoison status --watch` on a terminal: is the page right, does it go on, and can it be left?"""

import os
import re
import select
import signal
import socket
import subprocess
import termios
import threading
import time
from contextlib import contextmanager

import pyte
import pytest

from tests.e2e.command_line import LIMIT, UNPOISON, environment, terminal
from unpoison import App
from unpoison.store.choice import store_for
from unpoison.store.port import OPERATOR, ConsumerSign, Pause

URL = "sqlite:///shop.db"


class Watched:
    """The command on a terminal, as a person sees it."""

    def __init__(self, process, master, columns, lines):
        self.process, self._master = process, master
        self.screen = pyte.Screen(columns, lines)
        self._stream, self.written = pyte.ByteStream(self.screen), b""

    @property
    def text(self):
        return "\n".join(line.rstrip() for line in self.screen.display)

    def read(self, seconds=0.5):
        if select.select([self._master], [], [], seconds)[0]:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:
                return
            self.written += chunk
            self._stream.feed(chunk)

    def until(self, shown):
        """Read until this (a regular expression) is on the screen."""
        stop = time.monotonic() + LIMIT
        while not re.search(shown, self.text):
            assert time.monotonic() < stop, f"{shown!r} is not shown:\n{self.text}"
            self.read()

    def resize(self, columns, lines):
        termios.tcsetwinsize(self._master, (lines, columns))
        self.screen.resize(lines, columns)

    def press(self, key):
        os.write(self._master, key)

    def end(self):
        """The exit code, once everything that it wrote was read."""
        stop = time.monotonic() + LIMIT
        while self.process.poll() is None and time.monotonic() < stop:
            self.read(0.1)
        self.read(0.1)
        return self.process.wait(1)


@contextmanager
def watched(folder, *arguments, columns=120, lines=30):
    with terminal(columns) as (master, slave):
        termios.tcsetwinsize(slave, (lines, columns))
        command = [*UNPOISON, "status", *arguments, "--watch"]
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(),
            close_fds=True,
            start_new_session=True,
        )
        os.close(slave)
        try:
            yield Watched(process, master, columns, lines)
        finally:
            process.kill()
            process.wait(LIMIT)


@pytest.fixture
def shop(tmp_path):
    """A file with one dead letter, two messages that wait, and a store in which a consumer is alive."""
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")

    @app.consumer("orders", isolation="inline")
    def fail(body: bytes):
        raise KeyError("total")

    app.publish("orders", b"1")
    app.run(until_empty=True)
    app.publish_many("orders", [b"2", b"3"])
    app.close()
    tell(tmp_path, ConsumerSign("web-1:7", "orders", "1.4", 0.0, 0.0, "running", 100, 5, 2))
    return tmp_path


def tell(folder, sign):
    with opened(folder) as store:
        store.leave(sign.consumer, "other")
        store._noted.clear()  # so that it is written at once
        store.exchange(sign, ())


@contextmanager
def opened(folder):
    store = store_for(f"sqlite:///{folder / 'shop.db'}")
    store.open()
    try:
        yield store
    finally:
        store.close()


def test_the_page_tells_rates_states_causes_and_consumers_and_q_leaves_it(shop):
    with watched(shop, "--url", URL) as page:
        page.until("KeyError: 'total'")
        assert "SOURCE  STATE    READY  DELAYED  RUNNING  DEAD  OLDEST  DONE/S" in page.text
        assert "web-1:7" in page.text
        page.until(r"running +2 .* 0 +0 +0 +0\n")  # two looks make rates
        tell(shop, ConsumerSign("web-1:7", "orders", "1.4", 0.0, 0.0, "running", 900_000, 5, 2))
        page.until(r"running +2 .* \d+,\d{3} ")  # the rate of one that is very busy
        with opened(shop) as store:
            store.pause(Pause("orders", OPERATOR, "stock-taking", "eva@web-1"))
        page.until("'orders' is paused by eva@web-1")
        page.until("unpoison resume orders")
        assert page.text.index("unpoison resume") < page.text.index("Dead letters") < page.text.index("CONSUMER")
        page.press(b"q")
        assert page.end() == 0
        assert b"\x1b[?1049l" in page.written  # the terminal is as it was before


def test_it_fits_terminals_of_any_size_while_they_change(shop):
    with watched(shop, "--url", URL) as page:
        page.until("KeyError: 'total'")
        page.resize(70, 24)
        page.until("FAILED/S")
        page.until("DEAD/S\n")
        assert "NET/S" not in page.text
        page.resize(44, 8)
        page.until("more lines")
        page.until("orders: running")
        page.process.send_signal(signal.SIGINT)
        assert page.end() == 0


def test_a_silent_broker_is_told_and_the_page_can_be_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        accepted = []
        threading.Thread(target=lambda: accepted.append(silent.accept()), daemon=True).start()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with watched(tmp_path, "orders", "--url", url) as page:
            page.until("has not answered for")
            page.press(b"q")
            assert page.end() == 0
        for connection, _ in accepted:
            connection.close()


def test_what_cannot_be_asked_at_all_is_one_error(tmp_path):
    with watched(tmp_path, "orders", "--url", "redis://127.0.0.1:1") as page:
        assert page.end() == 1
        assert "Error: " in page.text
