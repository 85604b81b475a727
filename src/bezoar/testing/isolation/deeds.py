"""What harm can a handler do? Each deed is named in the message's body: {"do": "segfault"}.

Workers are children of their consumer, so a handler finds everybody it can hurt by looking at its parent's children.
"""

import asyncio
import ctypes
import faulthandler
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from bezoar.errors import Discard, Permanent, RetryLater
from bezoar.testing.isolation import tree
from bezoar.testing.isolation.diary import LOOK_EVERY, Diary
from bezoar.workers.marks import LANES

MIB = 1024 * 1024


class Deeds:
    """What the handlers of a scene can do."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def commit(self, payload: dict[str, Any], id_: str) -> None:
        """Do what the body says. A list is done one by one, start after start, and then from the beginning again."""
        getattr(self, f"do_{self._chosen(payload, id_)}")(payload.get("with"))

    async def commit_async(self, payload: dict[str, Any], id_: str) -> None:
        name, argument = self._chosen(payload, id_), payload.get("with")
        if hasattr(self, f"await_{name}"):
            await getattr(self, f"await_{name}")(argument)
        else:
            getattr(self, f"do_{name}")(argument)

    def do_nothing(self, _: Any) -> None:
        """A healthy message."""

    def do_work(self, seconds: float) -> None:
        """A healthy message that takes its time, and the processor's."""
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass

    def do_block(self, seconds: float) -> None:
        """An event loop, if it runs on one."""
        time.sleep(seconds)

    def do_raise(self, text: Any) -> NoReturn:
        raise ConnectionError(text or "poison")

    def do_time_out(self, _: Any) -> NoReturn:
        raise TimeoutError("took too long")

    def do_discard(self, _: Any) -> NoReturn:
        raise Discard("not wanted")

    def do_give_up(self, _: Any) -> NoReturn:
        raise Permanent("cannot work")

    def do_retry_later(self, _: Any) -> NoReturn:
        raise RetryLater(0)

    def do_end_when_looked_at(self, _: Any) -> None:
        """Run over the limit, and end when the consumer asks for the stack: by then it has looked once, and will look again."""
        before = _size_of_stack_file()
        while _size_of_stack_file() == before:
            pass

    def do_wait(self, gate: str) -> None:
        """Until the promise makes the gate's file."""
        while not self._diary.gate(gate).exists():
            time.sleep(LOOK_EVERY)

    def do_exit(self, code: int | None) -> NoReturn:
        os._exit(7 if code is None else code)

    def do_sys_exit(self, _: Any) -> NoReturn:
        sys.exit(3)

    def do_segfault(self, _: Any) -> None:
        ctypes.string_at(0)

    def do_log_and_segfault(self, mebibytes: int) -> None:
        self.do_allocate(mebibytes)
        log = logging.getLogger("shop")
        for n in range(100):
            log.warning("line %d before the end", n)
        a_function_of_the_shop()

    def do_die(self, _: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_abort(self, _: Any) -> NoReturn:
        os.abort()

    def do_allocate(self, mebibytes: int) -> None:
        """Really: each page is written to."""
        kept = bytearray(mebibytes * MIB)
        kept[:: resource.getpagesize()] = b"x" * len(kept[:: resource.getpagesize()])

    def do_loop(self, _: Any) -> NoReturn:
        while True:
            pass

    def do_get_stuck(self, _: Any) -> None:
        """In a C call that holds the interpreter and that no signal interrupts."""
        libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)

    def do_match(self, _: Any) -> None:
        """A regular expression that takes for ever."""
        re.match(r"(a+)+$", "a" * 64 + "b")

    def do_overflow(self, _: Any) -> None:
        """The real stack, which grows until its limit: Python's own check is made to come too late."""
        sys.setrecursionlimit(2**30)
        resource.setrlimit(resource.RLIMIT_STACK, (256 * 1024, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        nested: list[Any] = []
        for _n in range(20_000):
            nested = [nested]
        repr(nested)

    def do_fork(self, _: Any) -> None:
        """And return, in both."""
        os.fork()

    def do_fork_and_stay(self, _: Any) -> None:
        """The child never ends; the parent returns."""
        if os.fork() == 0:
            signal.pause()

    def do_close(self, _: Any) -> NoReturn:
        """Every descriptor, and never return."""
        os.closerange(3, 65536)
        while True:
            time.sleep(1)

    def do_close_and_return(self, _: Any) -> None:
        os.closerange(3, 65536)

    def do_leave_subprocess(self, _: Any) -> None:
        subprocess.Popen(["sleep", "1000"])  # noqa: S607 - found on the path of every system

    def do_leave_orphan(self, _: Any) -> None:
        """A process that nobody waits for, and that soon ends."""
        subprocess.Popen(["sh", "-c", "sleep 0.01 &"], start_new_session=True).wait()  # noqa: S607 - found on the path of every system

    def do_leave_shell(self, _: Any) -> None:
        """As `os.system` does it: everything that can be inherited is."""
        os.system("sleep 1000 &")  # noqa: S605, S607 - a constant

    def do_leave_shell_and_kill_consumer(self, _: Any) -> None:
        self.do_leave_shell(None)
        self.do_kill_consumer(None)

    def do_leave_thread(self, _: Any) -> None:
        """That crashes as soon as the next message runs in this process."""
        mine = len(self._starts_here())

        def crash_later() -> None:
            while len(self._starts_here()) == mine:
                time.sleep(LOOK_EVERY)
            ctypes.string_at(0)

        threading.Thread(target=crash_later, daemon=True).start()

    def do_kill_consumer(self, _: Any) -> None:
        """By its process id: this worker is in a session of its own."""
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    def do_kill_consumer_and_tell(self, _: Any) -> None:
        """And write down who else was running."""
        running = {entry.id for entry in self._diary.entries("start")} - set(self._diary.done())
        self._diary.write("killing", note=" ".join(id_ for id_ in sorted(running) if self._runs_elsewhere(id_)))
        self.do_kill_consumer(None)

    def do_kill_all(self, _: Any) -> None:
        """Every process of the consumer, this one last."""
        consumer = os.getppid()
        for pid in (tree.template_of(consumer), *tree.workers_of(consumer), consumer):
            if pid not in (0, os.getpid()):
                _kill(pid)
        _kill(os.getpid())

    def do_kill_template(self, _: Any) -> None:
        _kill(tree.template_of(os.getppid()))

    def do_kill_template_and_die(self, _: Any) -> None:
        self.do_kill_template(None)
        _kill(os.getpid())

    def do_stop_template_and_die(self, _: Any) -> None:
        """A template that stands still cannot make the next worker."""
        os.kill(tree.template_of(os.getppid()), signal.SIGSTOP)
        _kill(os.getpid())

    def do_kill_siblings(self, _: Any) -> None:
        for pid in tree.workers_of(os.getppid()):
            if pid != os.getpid():
                _kill(pid)

    def do_kill_siblings_and_die(self, _: Any) -> None:
        self.do_kill_siblings(None)
        _kill(os.getpid())

    def do_kill_busy_siblings_and_die(self, others: list[str]) -> None:
        """Once these run beside this one."""
        while not set(others) <= set(self._diary.starts()):
            time.sleep(LOOK_EVERY)
        self.do_kill_siblings_and_die(None)

    def do_die_if_beside(self, other: str) -> None:
        """Take the consumer down, but only while the other one is running too. It is waited for once, so that they meet."""
        while not self._diary.starts()[other]:
            time.sleep(LOOK_EVERY)
        if self._runs_elsewhere(other):
            self.do_kill_all(None)

    def do_overwrite(self, how: str) -> None:
        """The memory that this worker shares with its consumer, and die."""
        for first, size in _marks_in_memory():
            if how == "success":
                _claim_success(first, size)
            elif how == "noise":
                ctypes.memmove(first, random.randbytes(size), size)
            else:
                ctypes.memset(first, {"zeros": 0, "ones": 1, "ff": 255}[how], size)
        _kill(os.getpid())

    async def await_wait(self, gate: str) -> None:
        while not self._diary.gate(gate).exists():
            await asyncio.sleep(LOOK_EVERY)

    async def await_sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def await_ignore_cancellation(self, _: Any) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def await_exit_in_a_task(self, _: Any) -> None:
        async def leave() -> NoReturn:
            sys.exit(3)

        await asyncio.create_task(leave())

    async def await_stop_the_loop(self, _: Any) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1000)

    async def await_fork_and_wait(self, gate: str) -> None:
        os.fork()
        await self.await_wait(gate)

    def _chosen(self, payload: dict[str, Any], id_: str) -> str:
        deeds: str | list[str] = payload.get("do", "nothing")
        return deeds if isinstance(deeds, str) else deeds[(self._diary.starts()[id_] - 1) % len(deeds)]

    def _starts_here(self) -> list[str]:
        return [entry.id for entry in self._diary.entries("start") if entry.worker == os.getpid()]

    def _runs_elsewhere(self, id_: str) -> bool:
        last = [entry for entry in self._diary.of(id_) if entry.what in ("start", "done")][-1:]
        return bool(last) and last[0].what == "start" and last[0].worker != os.getpid() and _is_alive(last[0].worker)


def _size_of_stack_file() -> int:
    """How much was written to the file that takes this worker's stack."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if "memfd:bezoar-stack" in str(link.readlink()):
                return os.fstat(int(link.name)).st_size
    return 0


def _is_alive(pid: int) -> bool:
    return tree.state(pid) not in ("", "Z", "X")


def a_function_of_the_shop() -> None:
    """Has a name to be looked for in the stack of a crash."""
    faulthandler._sigsegv()  # type: ignore[attr-defined]  # noqa: SLF001 - the plainest crash there is


def _kill(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _marks_in_memory() -> list[tuple[int, int]]:
    """Where the shared memory is mapped in this process: (address, size)."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:bezoar-marks" in line:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            found.append((first, last - first))
    return found


def _claim_success(first: int, size: int) -> None:
    """Write the success code of an earlier message over the marks of all, as if every one of them had ended well."""
    outcomes = first + 8 * (LANES + 2)
    marks = ctypes.string_at(outcomes, min(512, size - 8 * (LANES + 2)))
    code = next((mark for mark in marks if mark > 1), 2)
    ctypes.memset(outcomes, code, len(marks))
