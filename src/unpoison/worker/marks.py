"""The memory that consumer and worker share: after a death it tells exactly which message was running.

One small memory file per worker, mapped by both. The worker notes what it is about to start *before* it starts
it, and how it ended afterwards. Nothing depends on a last message from it.

    words   end of batch 0, end of batch 1, the lane whose step is running + 1, habits of the app (see `health`)
    lanes   per lane two words: what runs in it + 1 (IDLE = nothing), and since when (CLOCK_MONOTONIC, ns; 0 = not yet)
    times   per message of each batch since when it ran, and behind the last one when it had ended
    bytes   per message of each batch how it ended: 0 = not yet, FAILED, or the batch's own success code

A worker that runs one message at a time has one lane and takes batches; one that runs threads or tasks has a lane for
each, and a "batch" of one message per lane.
"""

import mmap
import os
import signal
import sys
import time
from typing import NamedTuple

BATCH = 256
BATCHES = 2
FAILED = 1
"""Success codes are random, from 2 to 255, and new for each batch or lane: a stray write of a worker must not look like one."""

IDLE = 0x1D1E_1D1E_1D1E_1D1E
"""Nothing runs in this lane. Not 0, which a stray write of zeros would leave as well."""

END, STEPPING, HABITS, LANES = 0, 2, 3, 4
TIMES = BATCH + 2
"""Words for the times of one batch: a place that is not used, one for each message, and one for the end of the last."""
_NOTHING = bytes(BATCH)

STACK_SIGNAL = signal.SIGRTMAX - 3
"""Makes a worker write its stack down, wherever it is stuck. One of the signals that programs have no customary use for."""


class BatchView(NamedTuple):
    """Where the marks of one batch are, for the loop that runs it: a call for each mark would cost more than the mark.

    Write `times[first + n]`, then `words[what]` = `first` + n to claim the n-th message (from 1), and `outcomes[first + n - 1]`
    once it has ended; the next of `times` and `words[what] = IDLE` after the batch. `words[end]` is how many of it may start.
    """

    words: memoryview
    outcomes: memoryview
    times: memoryview
    what: int
    end: int
    first: int


class Marks:
    """The shared memory of one worker. Consumer and worker use the same methods."""

    def __init__(self, descriptor: int, lanes: int) -> None:
        self.lanes = lanes
        self._map = mmap.mmap(descriptor, size(lanes))
        whole = memoryview(self._map)
        self._times_at = LANES + 2 * lanes
        self._words = whole[: outcomes_at(lanes)].cast("Q")
        self._outcomes = whole[outcomes_at(lanes) :]
        self.step = self._words[STEPPING : STEPPING + 1]
        """One word: the lane whose step is running, + 1. The worker writes it around every step of a task."""

    def close(self) -> None:
        self.step.release()
        self._words.release()
        self._outcomes.release()

    def running(self, lane: int = 0) -> tuple[int, int]:
        """(what runs in the lane + 1, since when); (IDLE, …) if nothing does. A lane of its own runs message 1."""
        return self._words[LANES + 2 * lane], self._words[LANES + 2 * lane + 1]

    def running_in_batch(self) -> tuple[int, int]:
        """(place of what runs in both batches + 1, since when), in a worker that takes batches; (IDLE, …) if nothing does."""
        what = self._words[LANES]
        return what, self._words[self._time(what)] if 0 < what <= BATCHES * BATCH else 0

    def _time(self, what: int) -> int:
        """Where it stands since when this message ran."""
        return self._times_at + (what - 1) // BATCH * (TIMES - BATCH) + what

    def times(self, slot: int, count: int) -> list[int]:
        """Since when each of the first messages of a batch ran; the last one is when the one before had ended."""
        first = self._time(slot * BATCH + 1)
        return self._words[first : first + count].tolist()

    def outcome(self, index: int) -> int:
        """How this message ended: 0 = not yet. The index is that of its lane, or its place in both batches."""
        return self._outcomes[index]

    def stepping(self) -> int | None:
        """The lane whose step is running right now, where tasks share one thread."""
        lane = self.step[0]
        return lane - 1 if 0 < lane <= self.lanes else None

    def prepare_lane(self, lane: int) -> None:
        """Make a lane ready for its next message. Only while the worker is not looking at it."""
        self._outcomes[lane] = 0
        self._words[LANES + 2 * lane + 1] = 0  # not begun

    def begin(self, lane: int) -> None:
        self._words[LANES + 2 * lane + 1] = time.monotonic_ns()
        self._words[LANES + 2 * lane] = 1

    def end(self, lane: int, outcome: int) -> None:
        self._outcomes[lane] = outcome
        self._words[LANES + 2 * lane] = IDLE

    def batch_view(self, slot: int) -> BatchView:
        first = slot * BATCH
        return BatchView(self._words, self._outcomes, self._words[self._time(first + 1) - first - 1 :], LANES, END + slot, first)

    def batch(self, slot: int, count: int) -> bytes:
        """How the messages of a batch ended so far."""
        return bytes(self._outcomes[slot * BATCH : slot * BATCH + count])

    def is_empty_behind(self, slot: int, count: int) -> bool:
        """Whether nothing is marked in a batch's place beyond its messages."""
        return not any(self._outcomes[slot * BATCH + count : (slot + 1) * BATCH])

    def prepare_batch(self, slot: int, count: int) -> None:
        """Make a batch's place ready for the next one. Only while the worker is not looking at it."""
        self._outcomes[slot * BATCH : (slot + 1) * BATCH] = _NOTHING
        self._words[END + slot] = count

    def end_batch_at(self, slot: int, count: int) -> None:
        """No more than so many of a batch may start. Only while the worker stands still."""
        self._words[END + slot] = count

    @property
    def habits(self) -> int:
        """Bits of `health.REVERSIBLE`: what the worker need not check."""
        return self._words[HABITS]

    @habits.setter
    def habits(self, bits: int) -> None:
        self._words[HABITS] = bits


def size(lanes: int) -> int:
    return outcomes_at(lanes) + max(BATCHES * BATCH, lanes)


def outcomes_at(lanes: int) -> int:
    """How many bytes stand before those that say how messages ended."""
    return 8 * (LANES + 2 * lanes + BATCHES * TIMES)


def create(lanes: int) -> int:
    """A new memory file for a worker's marks; both sides get a descriptor of it."""
    descriptor = os.memfd_create("unpoison-marks", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size(lanes))
    idle = IDLE.to_bytes(8, sys.byteorder) + bytes(8)
    os.pwrite(descriptor, idle * lanes, 8 * LANES)
    return descriptor
