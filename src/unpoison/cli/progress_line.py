"""How far is a run? The last line of the terminal tells, while it lasts.

Handlers print as they like, from processes of their own, so nothing can be drawn among their lines without being torn. The
terminal itself is told to scroll only the lines above the last one; then nobody else's output reaches it.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REFRESH = 0.2
SMALLEST = 5

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def is_possible() -> bool:
    """Whether standard error is a terminal that can keep a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" and _size().lines >= SMALLEST


@contextmanager
def progress_line(text: Callable[[], str]) -> Iterator[None]:
    """Show what `text` says, again and again, in the last line."""
    ended = threading.Event()
    thread = threading.Thread(target=_show, args=(text, ended), name="unpoison-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(text: Callable[[], str], ended: threading.Event) -> None:
    size = None
    while not ended.wait(REFRESH):
        if size != (size := _size()):
            # A line end makes room where the cursor is in the last line; setting the area moves the cursor, so it is put back.
            _write(f"\n{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}\x1b[1A")
        _write(f"{_SAVE}\x1b[{size.lines};1H\x1b[2K{_DIM}{text()[: size.columns]}{_PLAIN}{_RESTORE}")
    if size is not None:
        _write(f"{_SAVE}\x1b[r{_RESTORE}\x1b[J")


def _size() -> os.terminal_size:
    return shutil.get_terminal_size()


def _write(text: str) -> None:
    """In one call, so that nothing of another process comes between saving and restoring the cursor."""
    os.write(sys.stderr.fileno(), text.encode())
