"""What can a handler do that the body of a message names: {"do": "segfault"}?

What it does to its own process is in `crashes`. Here is what needs the diary, other processes, or an event loop. Workers are
children of their consumer, so a handler finds every process it can hurt by looking at its parent's children.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from unpoison.errors import Discard
from unpoison.testing.isolation import crashes, processes
from unpoison.testing.isolation.diary import LOOK_EVERY, Diary

Action = crashes.Action
AsyncAction = Callable[[Any], Awaitable[None]]


class ScriptedActions:
    """What the handlers of a scene can do."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._actions: dict[str, Action] = crashes.ACTIONS | {
            action.__name__: action
            for action in (
                self.discard,
                self.wait,
                self.close_and_wait,
                self.copy,
                self.leave_thread,
                self.leave_shell_and_kill_consumer,
                self.kill_consumer,
                self.kill_consumer_and_tell,
                self.kill_all,
                self.kill_template,
                self.kill_template_and_die,
                self.stop_template_and_die,
                self.kill_siblings,
                self.kill_siblings_and_die,
                self.kill_busy_siblings_and_die,
                self.die_if_beside,
            )
        }
        self._async_actions: dict[str, AsyncAction] = {
            "wait": self._wait_async,
            "sleep": asyncio.sleep,
            "ignore_cancellation": self._ignore_cancellation,
            "exit_in_a_task": self._exit_in_a_task,
            "stop_the_loop": self._stop_the_loop,
            "fork_and_wait": self._fork_and_wait,
        }

    def run(self, payload: dict[str, Any], id_: str) -> None:
        """Do what the body says. Of a list one action at each start, and then from the beginning again."""
        self._actions[self._chosen(payload, id_)](payload.get("how"))

    async def run_async(self, payload: dict[str, Any], id_: str) -> None:
        """The same on an event loop, where some actions are others."""
        name, how = self._chosen(payload, id_), payload.get("how")
        if name in self._async_actions:
            await self._async_actions[name](how)
        else:
            self._actions[name](how)

    def discard(self, _: Any) -> NoReturn:
        self._diary.write("discard")
        raise Discard("not wanted")

    def wait(self, gate: str) -> None:
        """Until the promise makes the gate's file."""
        while not self._diary.gate(gate).exists():
            time.sleep(LOOK_EVERY)

    def close_and_wait(self, gate: str) -> None:
        """Close every descriptor, the worker's line to its consumer among them, and go on for a while.

        Not the diary's: a neighbour in another thread may be writing to it. It would fail, and as its failure cannot be told over
        a closed line, the worker would end, and this message with it.
        """
        for link in list(Path("/proc/self/fd").iterdir()):
            with suppress(OSError):
                if int(link.name) > 2 and link.readlink().name != "diary":
                    os.close(int(link.name))
        self.wait(gate)

    def copy(self, files: list[str]) -> None:
        """As they are at this moment, for a closer look."""
        copies = self._diary.folder / "copy"
        copies.mkdir()
        for name in files:
            shutil.copy(self._diary.folder / name, copies / name)

    def leave_thread(self, victim: str | None) -> None:
        """That crashes as soon as the next message runs in this process, or this one."""
        mine = len(self._starts_here())

        def crash_later() -> None:
            while not [id_ for id_ in self._starts_here()[mine:] if victim in (None, id_)]:
                time.sleep(LOOK_EVERY)
            ctypes.string_at(0)

        threading.Thread(target=crash_later, daemon=True).start()

    def leave_shell_and_kill_consumer(self, _: Any) -> None:
        crashes.leave_shell(None)
        self.kill_consumer(None)

    def kill_consumer(self, _: Any) -> None:
        """By its process id: this worker is in a session of its own."""
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    def kill_consumer_and_tell(self, _: Any) -> None:
        """And write down who else was running."""
        running = {entry.id for entry in self._diary.entries("start")} - set(self._diary.done())
        self._diary.write("killing", note=" ".join(id_ for id_ in sorted(running) if self._runs_elsewhere(id_)))
        self.kill_consumer(None)

    def kill_all(self, _: Any) -> None:
        """Every process of the consumer, this one last."""
        consumer = os.getppid()
        for pid in (processes.template_of(consumer), *processes.workers_of(consumer), consumer):
            if pid not in (0, os.getpid()):
                _kill(pid)
        crashes.die(None)

    def kill_template(self, _: Any) -> None:
        _kill(processes.template_of(os.getppid()))

    def kill_template_and_die(self, _: Any) -> None:
        self.kill_template(None)
        crashes.die(None)

    def stop_template_and_die(self, _: Any) -> None:
        """A template that stands still cannot make the next worker."""
        os.kill(processes.template_of(os.getppid()), signal.SIGSTOP)
        crashes.die(None)

    def kill_siblings(self, _: Any) -> None:
        for pid in processes.workers_of(os.getppid()):
            if pid != os.getpid():
                _kill(pid)

    def kill_siblings_and_die(self, _: Any) -> None:
        self.kill_siblings(None)
        crashes.die(None)

    def kill_busy_siblings_and_die(self, others: list[str]) -> None:
        """Once these run beside this one."""
        while not set(others) <= set(self._diary.starts()):
            time.sleep(LOOK_EVERY)
        self.kill_siblings_and_die(None)

    def die_if_beside(self, other: str) -> None:
        """Take the consumer down, but only while the other one is running too. It is waited for once, so that they meet."""
        while not self._diary.starts()[other]:
            time.sleep(LOOK_EVERY)
        if self._runs_elsewhere(other):
            self.kill_all(None)

    async def _wait_async(self, gate: str) -> None:
        while not self._diary.gate(gate).exists():  # noqa: ASYNC110 - another process makes it, which cannot set an event
            await asyncio.sleep(LOOK_EVERY)

    async def _ignore_cancellation(self, _: Any) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def _exit_in_a_task(self, _: Any) -> None:
        async def leave() -> NoReturn:
            sys.exit(3)

        await asyncio.create_task(leave())

    async def _stop_the_loop(self, _: Any) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1000)

    async def _fork_and_wait(self, gate: str) -> None:
        os.fork()
        await asyncio.sleep(0)
        await self._wait_async(gate)

    def _chosen(self, payload: dict[str, Any], id_: str) -> str:
        names: str | list[str] = payload.get("do", "nothing")
        return names if isinstance(names, str) else names[(self._diary.starts()[id_] - 1) % len(names)]

    def _starts_here(self) -> list[str]:
        return [entry.id for entry in self._diary.entries("start") if entry.worker == os.getpid()]

    def _runs_elsewhere(self, id_: str) -> bool:
        last = [entry for entry in self._diary.of(id_) if entry.what in ("start", "done")][-1:]
        return bool(last) and last[0].what == "start" and last[0].worker != os.getpid() and _is_alive(last[0].worker)


def _is_alive(pid: int) -> bool:
    return processes.state(pid) not in ("", "Z", "X")


def _kill(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
