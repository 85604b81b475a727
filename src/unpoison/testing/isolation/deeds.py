"""What can a handler do that the body of a message names: {"do": "segfault"}?

What it does to its own process is in `harm`. Here is what needs the diary, other processes, or an event loop. Workers are
children of their consumer, so a handler finds everybody it can hurt by looking at its parent's children.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

from unpoison.errors import Discard
from unpoison.testing.isolation import harm, tree
from unpoison.testing.isolation.diary import LOOK_EVERY, Diary


class Deeds:
    """What the handlers of a scene can do."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def commit(self, payload: dict[str, Any], id_: str) -> None:
        """Do what the body says. A list is done one by one, start after start, and then from the beginning again."""
        self._deed(self._chosen(payload, id_))(payload.get("how"))

    async def commit_async(self, payload: dict[str, Any], id_: str) -> None:
        name, how = self._chosen(payload, id_), payload.get("how")
        if hasattr(self, f"await_{name}"):
            await getattr(self, f"await_{name}")(how)
        else:
            self._deed(name)(how)

    def _deed(self, name: str) -> harm.Deed:
        deed: harm.Deed = getattr(self, f"do_{name}", None) or getattr(
            harm, {"raise": "complain", "exit": "leave"}.get(name, name)
        )
        return deed

    def do_discard(self, _: Any) -> NoReturn:
        self._diary.write("discard")
        raise Discard("not wanted")

    def do_wait(self, gate: str) -> None:
        """Until the promise makes the gate's file."""
        while not self._diary.gate(gate).exists():
            time.sleep(LOOK_EVERY)

    def do_close_and_wait(self, gate: str) -> None:
        """Close every descriptor, the worker's line to its consumer among them, and go on for a while."""
        harm.close_and_return(None)
        self.do_wait(gate)

    def do_copy(self, files: list[str]) -> None:
        """As they are at this moment, for a closer look."""
        copies = self._diary.folder / "copy"
        copies.mkdir()
        for name in files:
            shutil.copy(self._diary.folder / name, copies / name)

    def do_leave_thread(self, victim: str | None) -> None:
        """That crashes as soon as the next message runs in this process, or this one."""
        mine = len(self._starts_here())

        def crash_later() -> None:
            while not [id_ for id_ in self._starts_here()[mine:] if victim in (None, id_)]:
                time.sleep(LOOK_EVERY)
            ctypes.string_at(0)

        threading.Thread(target=crash_later, daemon=True).start()

    def do_leave_shell_and_kill_consumer(self, _: Any) -> None:
        harm.leave_shell(None)
        self.do_kill_consumer(None)

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
        harm.die(None)

    def do_kill_template(self, _: Any) -> None:
        _kill(tree.template_of(os.getppid()))

    def do_kill_template_and_die(self, _: Any) -> None:
        self.do_kill_template(None)
        harm.die(None)

    def do_stop_template_and_die(self, _: Any) -> None:
        """A template that stands still cannot make the next worker."""
        os.kill(tree.template_of(os.getppid()), signal.SIGSTOP)
        harm.die(None)

    def do_kill_siblings(self, _: Any) -> None:
        for pid in tree.workers_of(os.getppid()):
            if pid != os.getpid():
                _kill(pid)

    def do_kill_siblings_and_die(self, _: Any) -> None:
        self.do_kill_siblings(None)
        harm.die(None)

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

    async def await_wait(self, gate: str) -> None:
        while not self._diary.gate(gate).exists():  # noqa: ASYNC110 - another process makes it, which cannot set an event
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
        await asyncio.sleep(0)
        await self.await_wait(gate)

    def _chosen(self, payload: dict[str, Any], id_: str) -> str:
        deeds: str | list[str] = payload.get("do", "nothing")
        return deeds if isinstance(deeds, str) else deeds[(self._diary.starts()[id_] - 1) % len(deeds)]

    def _starts_here(self) -> list[str]:
        return [entry.id for entry in self._diary.entries("start") if entry.worker == os.getpid()]

    def _runs_elsewhere(self, id_: str) -> bool:
        last = [entry for entry in self._diary.of(id_) if entry.what in ("start", "done")][-1:]
        return bool(last) and last[0].what == "start" and last[0].worker != os.getpid() and _is_alive(last[0].worker)


def _is_alive(pid: int) -> bool:
    return tree.state(pid) not in ("", "Z", "X")


def _kill(pid: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
