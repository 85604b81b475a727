"""A dead letter of a crash or a timeout tells how the worker ended: enough to find the line that did it."""

import time

from unpoison.model.failure import Crash
from unpoison.testing.isolation.scene import Scene
from unpoison.testing.lab import Lab

MIB = 1024 * 1024


def dossier(scene: Scene, id_: str) -> Crash:
    crash = scene.letters()[id_].crash
    assert crash is not None, f"the letter of {id_!r} has no crash dossier"
    return crash


def test_the_letter_of_a_crash_tells_signal_memory_stack_log_and_age(lab: Lab) -> None:
    began = time.monotonic()
    with Scene(lab, max_attempts=2, concurrency=1) as scene:
        scene.publish({"poison": {"do": "log_and_segfault", "how": 80}})
        scene.drained()
        crash = dossier(scene, "poison")
        lasted = time.monotonic() - began
        assert (crash.signal, crash.exit_code) == ("SIGSEGV", None)
        assert crash.elapsed is not None
        assert crash.worker_age is not None
        assert 0 < crash.elapsed <= crash.worker_age <= lasted
        assert crash.peak_rss is not None
        assert 80 * MIB < crash.peak_rss < 1000 * MIB
        assert "a_function_of_the_shop" in crash.stack
        lines = crash.log.splitlines()
        assert lines[-1] == "WARNING shop: line 99 before the end"
        assert 10 <= len(lines) <= 100
        letter = scene.letters()["poison"]
        assert "SIGSEGV" in letter.reason
        assert "a_function_of_the_shop" in letter.traceback
        assert [past.classification for past in letter.history] == ["crash", "crash"]


def test_the_letter_of_an_exit_tells_the_exit_code(lab: Lab) -> None:
    with Scene(lab, max_attempts=1) as scene:
        scene.publish({"poison": {"do": "exit", "how": 42}})
        scene.drained()
        crash = dossier(scene, "poison")
        assert (crash.signal, crash.exit_code) == (None, 42)
        assert "42" in scene.letters()["poison"].reason


def test_the_letter_of_a_timeout_tells_where_it_hung(lab: Lab) -> None:
    limit = 0.5
    with Scene(lab, max_attempts=1, timeout=limit, concurrency=1) as scene:
        scene.publish({"loop": {"do": "loop"}, "stuck": {"do": "get_stuck"}})
        scene.drained()
        for id_, place in (("loop", "in loop"), ("stuck", "in get_stuck")):
            crash = dossier(scene, id_)
            assert place in crash.stack
            assert crash.elapsed is not None
            assert crash.elapsed >= limit
            assert crash.worker_age is not None
            assert crash.peak_rss is not None
            assert scene.letters()[id_].classification == "timeout"


def test_the_stack_of_a_crash_is_that_of_the_crash_and_not_of_an_earlier_look(lab: Lab) -> None:
    with Scene(lab, max_attempts=1, timeout=0.5, concurrency=1) as scene:
        scene.healthy(3, "near-miss", do="end_when_looked_at")
        scene.publish({"poison": {"do": "log_and_segfault", "how": 1}})
        scene.drained()
        stack = dossier(scene, "poison").stack
        assert "a_function_of_the_shop" in stack
        assert "end_when_looked_at" not in stack


def test_in_async_the_letters_of_crash_and_timeout_have_a_dossier_too(lab: Lab) -> None:
    with Scene(lab, style="async", max_attempts=1, timeout=0.5, concurrency=4) as scene:
        scene.publish({"crash": {"do": "log_and_segfault", "how": 1}, "loop": {"do": "loop"}})
        scene.drained()
        assert (dossier(scene, "crash").signal, "a_function_of_the_shop" in dossier(scene, "crash").stack) == ("SIGSEGV", True)
        assert "in loop" in dossier(scene, "loop").stack
