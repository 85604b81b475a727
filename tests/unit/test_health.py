"""What does a worker notice about itself, and what does it put back? Each in a process of its own, as it would be."""

import subprocess
import sys
import textwrap

import pytest

from unpoison.worker.health import REVERSIBLE

BEFORE = """
import asyncio, contextlib, io, locale, os, signal, sys, threading
from pathlib import Path
os.environ["KEPT"] = "1"
from unpoison.worker.health import REVERSIBLE, Health
health = Health()
told = os.fdopen(os.dup(2), "w")  # standard error may be closed by then
"""
AFTER = """
found = health.check(0)
print(found and (str(found), found.is_lasting), health.check(0) is None, file=told, flush=True)
"""


def checked(damage, after=AFTER):
    script = BEFORE + textwrap.dedent(damage) + after
    ended = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return ended.stderr.strip()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("os.chdir('/')", "working directory"),
        ("import tempfile; os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())", "working directory"),
        ("os.umask(0o007)", "umask"),
        ("locale.setlocale(locale.LC_ALL, 'C.UTF-8' if locale.setlocale(locale.LC_ALL) == 'C' else 'C')", "locale"),
        ("sys.setrecursionlimit(500)", "recursion limit"),
        ("signal.signal(signal.SIGUSR1, signal.SIG_IGN)", "signal handlers"),
        ("signal.signal(signal.SIGTERM, lambda *_: None)", "signal handlers"),
        ("os.environ['NEW'] = 'secret'", "environment (NEW)"),
        ("del os.environ['KEPT']", "environment (KEPT)"),
        ("os.environ['KEPT'] = 'secret'", "environment (KEPT)"),
        ("os.environ.update(dict.fromkeys('abcde', 'x'))", "environment (a, b, c, …)"),
        ("os.chdir('/'); os.umask(0o007)", "working directory, umask"),
    ],
)
def test_what_can_be_put_back_is_put_back(damage, words):
    assert checked(damage) == f"({words!r}, False) True"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("sys.stdout.close()", "sys.stdout"),
        ("sys.stdout = None", "sys.stdout"),
        ("sys.stderr = io.StringIO(); sys.stderr.close()", "sys.stderr"),
        ("os.close(0)", "descriptor 0"),
        ("os.dup2(os.open(os.devnull, os.O_WRONLY), 1)", "descriptor 1"),
        ("asyncio._set_running_loop(asyncio.new_event_loop())", "event loop"),
        ("sys.stdout.close(); os.umask(0o007)", "sys.stdout, umask"),
    ],
)
def test_what_cannot_be_put_back_costs_the_worker(damage, words):
    assert checked(damage) == f"({words!r}, True) False"


@pytest.mark.parametrize(
    "harmless",
    [
        "pass",
        "sys.stdout = io.StringIO()",
        "with contextlib.redirect_stdout(io.StringIO()): print('x')",
        "asyncio.run(asyncio.sleep(0))",
        "with contextlib.chdir('/'): pass",
        "os.environ['KEPT'] = '1'",
        "threading.Thread(target=lambda: None).start()",
        "import subprocess; subprocess.run(['true'])",
    ],
)
def test_what_does_no_harm_is_not_noticed(harmless):
    assert checked(harmless) == "None True"


@pytest.mark.parametrize("name", REVERSIBLE)
def test_a_habit_of_the_app_is_left_alone(name):
    everything = """
    os.chdir('/'); os.umask(0o007); sys.setrecursionlimit(500); os.environ['NEW'] = '1'
    locale.setlocale(locale.LC_ALL, 'C.UTF-8' if locale.setlocale(locale.LC_ALL) == 'C' else 'C')
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    """
    after = f"print(health.check(1 << REVERSIBLE.index({name!r})).reversible, file=told, flush=True)"
    assert checked(everything, after) == str([other for other in REVERSIBLE if other != name])


def test_while_others_run_nothing_is_put_back_and_the_worker_is_to_be_replaced():
    after = """
found = health.check(0, put_back=False)
print(found.is_lasting, os.getcwd(), file=told, flush=True)
"""
    assert checked("os.chdir('/')", after) == "True /"


def test_a_working_directory_that_is_gone_for_good_costs_the_worker():
    gone = """
import tempfile
home = tempfile.mkdtemp()
os.chdir(home)
health = Health()
os.chdir('/')
os.rmdir(home)
"""
    assert checked(gone) == "('working directory', True) False"


def test_signal_handlers_are_the_main_threads_business():
    after = """
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
seen = []
thread = threading.Thread(target=lambda: seen.append(health.check(0)))
thread.start(); thread.join()
print(seen, health.check(0), file=told, flush=True)
"""
    assert checked("", after) == "[None] signal handlers"


@pytest.mark.parametrize("damage", ["loop.set_task_factory(None)", "await loop.shutdown_default_executor()"])
def test_an_event_loop_that_was_tampered_with_costs_the_worker(damage):
    after = f"""
async def main():
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coro, **how: asyncio.Task(coro, loop=loop, **how))
    health = Health(loop)
    before = health.check(0)
    {damage}
    print(before, health.check(0), health.check(0).is_lasting, file=told, flush=True)
asyncio.run(main())
"""
    assert checked("", after) == "None event loop True"
