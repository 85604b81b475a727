"""Checks whether a worker is still as it was when it became ready.

Handlers share their worker's process: what one of them changes there, the next one finds changed. So a worker compares
itself with its state after `on_worker_start`: after every failure and after every batch, never between successes.

What can be put back is put back and the worker is kept: working directory, umask, locale, recursion limit, signal handlers,
environment. Standard streams, descriptors 0 to 2 and the event loop cannot be put back: the worker is replaced.
"""

import _locale
import _signal  # type: ignore[import-not-found]  # `signal` wraps each answer in an enum: dearer than all the rest
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio  # takes longer to import than all the rest of a worker

_SIGNALS = tuple(sorted(set(map(int, signal.valid_signals())) & set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}))

REVERSIBLE = ("working directory", "umask", "locale", "recursion limit", "signal handlers", "environment")
"""What can be put back. The place of each in here is its bit in the word of habits (Marks.habits)."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What was found changed, in words, and which of REVERSIBLE those are. `is_lasting` says that the worker must be replaced."""

    what: list[str]
    reversible: list[str]
    is_lasting: bool

    def __str__(self) -> str:
        return ", ".join(self.what)


@dataclass(slots=True)
class _Trait:
    """One thing that can be put back: how it is read, how it is put back, and how it was."""

    read: Callable[[], Any]
    put_back: Callable[[Any], None]
    was: Any


class Health:
    """What a worker was like when it became ready. Made then, on its main thread."""

    def __init__(self, loop: "asyncio.AbstractEventLoop | None" = None) -> None:
        self._loop = loop
        self._task_factory = loop.get_task_factory() if loop is not None else None
        self._descriptors = {number: _file(number) for number in range(3)}
        self._streams = [name for name in ("stdin", "stdout", "stderr") if not _is_closed(getattr(sys, name))]
        folder = _folder()
        self._traits = [
            _Trait(_where, lambda _: os.chdir(folder), _where()),
            _Trait(self._read_umask, lambda was: _ignore(os.umask(was)), _umask()),
            _Trait(_read_locale, lambda was: _ignore(_locale.setlocale(_locale.LC_ALL, was)), _read_locale()),
            _Trait(sys.getrecursionlimit, sys.setrecursionlimit, sys.getrecursionlimit()),
            _Trait(_read_signals, _put_signals_back, _read_signals()),
            _Trait(_environment, _put_environment_back, dict(_environment())),
        ]

    def check(self, habits: int, *, put_back: bool = True) -> Damage | None:
        """What is not as it was; `habits` are bits of REVERSIBLE that are left alone. None if all is well.

        With `put_back=False`, because other messages are running in this worker and may be about to put it back
        themselves, whatever has changed counts as lasting.
        """
        lasting = self._broken()
        changed = [n for n, trait in enumerate(self._traits) if not habits >> n & 1 and self._has_changed(n, trait)]
        if not lasting and not changed:
            return None
        words = [self._words(n) for n in changed]
        stays = [n for n in changed if not (put_back and self._put_back(n))]
        return Damage([*lasting, *words], [REVERSIBLE[n] for n in changed], bool(lasting or stays))

    def _has_changed(self, n: int, trait: _Trait) -> bool:
        if REVERSIBLE[n] == "signal handlers" and threading.current_thread() is not threading.main_thread():
            return False  # only the main thread can change them, or put them back
        try:
            return bool(trait.read() != trait.was)
        except OSError:  # there is no working directory any more
            return True

    def _put_back(self, n: int) -> bool:
        trait = self._traits[n]
        with suppress(Exception):
            trait.put_back(trait.was)
            return not self._has_changed(n, trait)
        return False

    def _words(self, n: int) -> str:
        """What changed, by name. Values are left out: those of the environment may be secret."""
        if REVERSIBLE[n] != "environment":
            return REVERSIBLE[n]
        now, was = _environment(), self._traits[n].was
        names = sorted(os.fsdecode(name) for name in {*now, *was} if now.get(name) != was.get(name))
        return f"environment ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"

    def _broken(self) -> list[str]:
        broken = [f"descriptor {number}" for number, was in self._descriptors.items() if was is not None and _file(number) != was]
        broken += [f"sys.{name}" for name in self._streams if _is_closed(getattr(sys, name, None))]
        if not self._is_loop_sound():
            broken.append("event loop")
        return broken

    def _is_loop_sound(self) -> bool:
        if self._loop is None:
            events = sys.modules.get("asyncio.events")  # not imported: no loop can be running
            return events is None or events._get_running_loop() is None  # noqa: SLF001 - the public look raises
        is_shut = getattr(self._loop, "_executor_shutdown_called", False)
        return not is_shut and self._loop.get_task_factory() is self._task_factory

    def _read_umask(self) -> int:
        """It can be read only by setting it: so it is set to what it was."""
        was = self._traits[1].was
        now = os.umask(was)
        if now != was:
            os.umask(now)
        return now


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def _ignore(_: object) -> None:
    """For functions that answer with what was before."""


def _file(descriptor: int) -> tuple[int, int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_rdev


def _is_closed(stream: Any) -> bool:
    return stream is None or bool(getattr(stream, "closed", False))


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib is slower
    except OSError:
        return "."


def _where() -> tuple[int, int]:
    found = os.stat(".")  # noqa: PTH116 - pathlib is slower
    return found.st_dev, found.st_ino


def _read_locale() -> str:
    return _locale.setlocale(_locale.LC_ALL, None)


def _read_signals() -> tuple[Any, ...]:
    return tuple(map(_signal.getsignal, _SIGNALS))


def _put_signals_back(was: tuple[Any, ...]) -> None:
    for number, handler in zip(_SIGNALS, was, strict=True):
        # None: it was set by C code, and cannot be set from here.
        if handler is not None and _signal.getsignal(number) != handler:
            _signal.signal(number, handler)


def _environment() -> dict[bytes, bytes]:
    return os.environ._data  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001 - a copy decodes every value: 40 µs


def _put_environment_back(was: dict[bytes, bytes]) -> None:
    for name in _environment().keys() - was.keys():
        del os.environb[name]
    for name, value in was.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
