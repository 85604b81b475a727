"""What can a handler do to its own process? Each function is an action that a message's body can name: `ACTIONS`.

All take one argument, the body's "how", and most have no use for it.
"""

import ctypes
import errno
import faulthandler
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from unpoison.errors import Permanent
from unpoison.worker.marks import outcomes_at

MIB = 1024 * 1024

Action = Callable[[Any], None]


def nothing(_: Any) -> None:
    """A healthy message."""


def work(seconds: float) -> None:
    """A healthy message that takes its time, and the processor's."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def block(seconds: float) -> None:
    """An event loop, if it runs on one."""
    time.sleep(seconds)


def complain(text: Any) -> NoReturn:
    raise ConnectionError(text or "poison")


def time_out(_: Any) -> NoReturn:
    raise TimeoutError("took too long")


def give_up(_: Any) -> NoReturn:
    raise Permanent("cannot work")


def leave(code: int | None) -> NoReturn:
    os._exit(7 if code is None else code)


def sys_exit(_: Any) -> NoReturn:
    sys.exit(3)


def segfault(_: Any) -> None:
    ctypes.string_at(0)


def log_and_segfault(mebibytes: int) -> None:
    allocate(mebibytes)
    log = logging.getLogger("shop")
    for n in range(100):
        log.warning("line %d before the end", n)
    a_function_of_the_shop()


def a_function_of_the_shop() -> None:
    """Has a name to be looked for in the stack of a crash."""
    faulthandler._sigsegv()  # type: ignore[attr-defined]  # noqa: SLF001 - the plainest crash there is


def die(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def abort(_: Any) -> NoReturn:
    os.abort()


def allocate(mebibytes: int) -> None:
    """Really: each page is written to."""
    kept = bytearray(mebibytes * MIB)
    kept[:: resource.getpagesize()] = b"x" * len(kept[:: resource.getpagesize()])


def loop(_: Any) -> NoReturn:
    while True:
        pass


def get_stuck(_: Any) -> None:
    """In a C call that holds the interpreter and that no signal interrupts."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def match(_: Any) -> None:
    """A regular expression that takes for ever."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def overflow(_: Any) -> None:
    """The real stack, which grows until its limit: Python's own check is made to come too late."""
    sys.setrecursionlimit(2**30)
    resource.setrlimit(resource.RLIMIT_STACK, (256 * 1024, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    # Through C code each time, or no stack is used. Python 3.12 stops after 1,500 such calls, whatever limit is set: by then
    # they need more than there is.
    def again() -> None:
        through_c()

    through_c = ctypes.CFUNCTYPE(None)(again)
    through_c()


def end_when_looked_at(_: Any) -> None:
    """Run over the limit, and end when the consumer asks for the stack: by then it has looked once, and will look again."""
    before = _size_of_stack_file()
    while _size_of_stack_file() == before:
        pass


def fork(_: Any) -> None:
    """And return, in both."""
    os.fork()


def fork_and_stay(_: Any) -> None:
    """The child never ends; the parent returns."""
    if os.fork() == 0:
        signal.pause()


def close(_: Any) -> NoReturn:
    """Every descriptor, and never return."""
    os.closerange(3, 65536)
    while True:
        time.sleep(1)


def close_and_return(_: Any) -> None:
    os.closerange(3, 65536)


def close_stdout(_: Any) -> None:
    sys.stdout.close()


def close_descriptor(number: int) -> None:
    os.close(number)


def change_folder(_: Any) -> None:
    os.chdir("/")


def change_environment(_: Any) -> None:
    """As a library does that hands its settings to a program it starts."""
    os.environ["SHOP_CURRENCY"] = "EUR"


def speak(_: Any) -> None:
    """A healthy message that writes to standard output, below Python too."""
    print("shipped", flush=True)  # noqa: T201 - that is the point
    os.write(1, b"shipped\n")


HOME = Path.cwd()


def stay_home(_: Any) -> None:
    """A healthy message that relies on the working directory."""
    if Path.cwd() != HOME:
        raise ValueError(f"no such file in {Path.cwd()}")


def run_out(_: Any) -> NoReturn:
    """Of memory, as far as Python can tell."""
    raise MemoryError


def run_out_of_descriptors(_: Any) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


def leave_subprocess(_: Any) -> None:
    subprocess.Popen(["sleep", "1000"])  # noqa: S607 - found on the path of every system


def leave_orphan(_: Any) -> None:
    """A process that no parent waits for, and that soon ends."""
    subprocess.Popen(["sh", "-c", "sleep 0.01 &"], start_new_session=True).wait()  # noqa: S607 - as above


def leave_shell(_: Any) -> None:
    """As `os.system` does it: everything that can be inherited is."""
    os.system("sleep 1000 &")  # noqa: S605, S607 - a constant


def overwrite(how: str) -> None:
    """The memory that this worker shares with its consumer, and die."""
    for first, size in _marks_in_memory():
        if how == "success":
            _claim_success(first, size)
        elif how == "noise":
            ctypes.memmove(first, os.urandom(size), size)
        else:
            ctypes.memset(first, {"zeros": 0, "ones": 1, "ff": 255}[how], size)
    die(None)


def _marks_in_memory() -> list[tuple[int, int]]:
    """Where the shared memory is mapped in this process: (address, size)."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:unpoison-marks" in line:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            found.append((first, last - first))
    return found


def _claim_success(first: int, size: int) -> None:
    """Write the success code of an earlier message over the marks of all, as if every one of them had ended well."""
    outcomes = first + outcomes_at(1)
    marks = ctypes.string_at(outcomes, min(512, size - outcomes_at(1)))
    code = next((mark for mark in marks if mark > 1), 2)
    ctypes.memset(outcomes, code, len(marks))


def _size_of_stack_file() -> int:
    """How much was written to the file that takes this worker's stack."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if "memfd:unpoison-stack" in str(link.readlink()):
                return os.fstat(int(link.name)).st_size
    return 0


ACTIONS: dict[str, Action] = {"raise": complain, "exit": leave} | {
    action.__name__: action
    for action in (
        nothing,
        work,
        block,
        time_out,
        give_up,
        sys_exit,
        segfault,
        log_and_segfault,
        die,
        abort,
        allocate,
        loop,
        get_stuck,
        match,
        overflow,
        end_when_looked_at,
        fork,
        fork_and_stay,
        close,
        close_and_return,
        close_stdout,
        close_descriptor,
        change_folder,
        change_environment,
        speak,
        stay_home,
        run_out,
        run_out_of_descriptors,
        leave_subprocess,
        leave_orphan,
        leave_shell,
        overwrite,
    )
}
"""By the name that stands in a body."""
