"""A bell wakes whoever waits, and leaves nothing behind when nobody has it any more."""

import gc
import time
from pathlib import Path

from unpoison.app import App
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import drained
from unpoison.workers.interface import Bell


def open_files():
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_it_wakes_whoever_waits_also_if_it_rang_before():
    bell = Bell()
    bell.ring()
    began = time.monotonic()
    bell.wait(60)
    assert time.monotonic() - began < 30


def test_it_takes_its_descriptor_with_it():
    before = open_files()
    bell = Bell()
    assert len(open_files()) == len(before) + 1
    del bell
    assert open_files() == before


def test_apps_that_are_run_one_after_the_other_leave_no_open_files():
    def run():
        app = given.consumer(App("memory://"), "orders", print, isolation="thread")
        app.publish("orders", 1)
        drained(app)
        app.close()
        gc.collect()

    run()
    before = len(open_files())
    for _ in range(5):
        run()
    wait_until(lambda: len(open_files()) == before, lambda: "an app leaves files open")  # its threads end a moment later
