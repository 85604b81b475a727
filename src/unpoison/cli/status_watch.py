"""`unpoison status --watch` on a terminal: one page that is drawn again and again.

Brokers and stores are asked in threads of their own, so that the page goes on, and can be left, while one of them is silent.
"""

import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, NamedTuple, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from unpoison.cli.screen import group_table, moment
from unpoison.cli.source_status import SourceStatus
from unpoison.cli.status_causes import Causes, Latest
from unpoison.cli.status_rates import Rates
from unpoison.cli.status_text import NEEDS_STORE, page
from unpoison.errors import UnpoisonError
from unpoison.model.wording import one_line
from unpoison.port.broker_url import masked_text

FRAME = 0.25
"""Seconds between two drawings, and between two looks at the keyboard."""
SLOW = 3.0
"""Seconds after which a look that has not ended is told."""
CAUSES_EVERY = 5.0

Found = TypeVar("Found")


class Place(NamedTuple):
    """What is watched: the URLs of the broker and of the store, if there is one; how the broker is shown, the options that name
    both for another command, and what is said if there is no source."""

    url: str
    store: str
    shown: str
    named: str
    no_sources: str


class Look(NamedTuple):
    """What was seen, or why not all of it."""

    found: Sequence[SourceStatus]
    trouble: UnpoisonError | None = None


class Reader(Generic[Found]):
    """Looks again and again, in a thread that nobody waits for."""

    def __init__(self, look: Callable[[], Found], every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._look, self._every, self._clock = look, every, clock
        self._began: float | None = None
        self.latest: Found | None = None
        self.problem: BaseException | None = None
        self.answered, self.closed = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="unpoison-look", daemon=True).start()

    def lasts(self) -> float:
        """For how many seconds the present look has been going on."""
        began = self._began
        return 0.0 if began is None else self._clock() - began

    def _run(self) -> None:
        while not self.closed.is_set():
            self._began = self._clock()
            try:
                self.latest = self._look()
                self.answered.set()
            except BaseException as error:  # told by whoever shows what was found
                self.problem = error
                return
            finally:
                self._began = None
            self.closed.wait(self._every)


class Page:
    """The page as it is now. Cut at the end where the terminal is too short, which is told."""

    def __init__(self, place: Place, every: float) -> None:
        self._place, self._every = place, every
        self._rates, self._seen, self._causes = Rates(), Look(()), Latest()
        self._waits = 0.0

    def take(self, seen: Look | None, causes: Latest | None, waits: float) -> None:
        """What there is to show; `waits` is for how long nobody has answered."""
        if seen is not None and seen is not self._seen:
            self._rates.add(seen.found)
            self._seen = seen if seen.found else Look(self._seen.found, seen.trouble)
        self._causes, self._waits = causes or self._causes, waits

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        options = options.update(height=None)
        lines = [line for each in self._pieces(console) for line in console.render_lines(each, options, pad=False)]
        if len(lines) > console.height:
            hidden = len(lines) - console.height + 1
            note = Text(f"… {hidden} more lines: make the terminal taller", style="dim")
            lines = [*lines[: console.height - 1], *console.render_lines(note, options, pad=False)[:1]]
        for number, line in enumerate(lines):
            yield from line
            if number < len(lines) - 1:
                yield Segment.line()

    def _pieces(self, console: Console) -> Iterator[RenderableType]:
        now = time.time()
        yield Text(f"{moment(now)}, again every {self._every:g} s; q or Ctrl-C ends", style="dim")
        yield Text()
        seen = self._seen
        if seen.found:
            old = now - seen.found[0].now
            if self._waits > SLOW:
                said = f"No answer for {self._waits:.0f} s; what is shown is {old:.0f} s old."
                yield Text(f"{said}\n", style="bold yellow")
            rates = {each.source: self._rates.of(each.source) for each in seen.found}
            yield from page(seen.found, console.width, self._place.named, rates=rates, more=self._letters(console.width, now))
        elif self._waits > SLOW:
            yield Text(f"{self._place.shown} has not answered for {self._waits:.0f} s.", style="bold yellow")
        elif seen.trouble is None:
            yield Text(f"No sources: {self._place.no_sources}" if self._waits == 0 else "Reading …")
        if seen.trouble is not None:
            yield Text(f"\nError: {one_line(masked_text(str(seen.trouble)))}", style="bold red")
        if not self._place.store:
            yield Text(f"\n{NEEDS_STORE}", style="dim")

    def _letters(self, width: int, now: float) -> list[Table | Text]:
        pieces: list[Table | Text] = []
        if self._causes.groups:
            pieces = [Text("\nDead letters, the latest causes first", style="bold"), group_table(self._causes.groups, width, now)]
        if self._causes.unread:
            names = one_line(", ".join(map(repr, self._causes.unread)))
            said = f"The DLQ of {names} can only be read under a lock. Its causes: unpoison dlq groups{self._place.named}"
            pieces.append(Text(f"\n{said}", style="dim"))
        return pieces


def watch(place: Place, look: Callable[[], Look], screen: Console, every: float) -> None:
    """Until q or Ctrl-C."""
    shown, letters = Page(place, every), Causes(place.url, place.store)
    status = Reader(look, every)

    def look_at_letters() -> Latest:
        status.answered.wait()
        return Latest() if status.latest is None else letters.look(status.latest.found)

    causes = Reader(look_at_letters, CAUSES_EVERY)
    with suppress(KeyboardInterrupt), _keys() as pressed, Live(shown, console=screen, screen=True, auto_refresh=False) as live:
        while status.problem is None:
            shown.take(status.latest, causes.latest, status.lasts() if status.latest is None else _late(status, every))
            live.refresh()
            if pressed(FRAME):
                break
    for reader in (status, causes):
        reader.closed.set()
    if status.problem is not None:
        raise status.problem


def _late(status: Reader[Look], every: float) -> float:
    lasts = status.lasts()
    return lasts + every if lasts > SLOW else 0.0


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Waits for so many seconds; true if somebody has pressed q. Keys count at once, and are not shown."""
    if not sys.stdin.isatty():
        never = threading.Event()
        yield never.wait
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    try:
        yield lambda seconds: bool(select.select([keyboard], [], [], seconds)[0]) and b"q" in os.read(keyboard, 64).lower()
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
