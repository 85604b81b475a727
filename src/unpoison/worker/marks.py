"""What do consumer and worker share, so that a worker's death tells exactly which message was running?

One small memory file per worker, mapped by both. The worker writes down what it is about to start *before* it starts
it, and how it ended afterwards; nothing depends on its last words.

    words   end of batch 0, end of batch 1, the lane whose step is running + 1, habits of the app (see `health`)
    lanes   per lane two words: what runs in it + 1 (IDLE = nothing), and since when (CLOCK_MONOTONIC, ns; 0 = not yet)
    bytes   per message of each batch how it ended: 0 = not yet, FAILED, or the batch's own success code

A worker that runs one message at a time has one lane and takes batches; one that runs threads or tasks has a lane for
each, and a "batch" of one message per lane.
"""

import mmap
import os
import signal
import sys

BATCH = 256
BATCHES = 2
FAILED = 1
"""Success codes are random, from 2 to 255, and new for each batch or lane: a stray write of a worker must not look like one."""

IDLE = 0x1D1E_1D1E_1D1E_1D1E
"""Nothing runs in this lane. Not 0, which a stray write of zeros would leave as well."""

END, STEPPING, HABITS, LANES = 0, 2, 3, 4
_NOTHING = bytes(BATCH)

STACK_SIGNAL = signal.SIGRTMAX - 3
"""Makes a worker write its stack down, wherever it is stuck. One of the signals that programs have no customary use for."""


class Marks:
    """The shared memory of one worker, as both sides see it."""

    def __init__(self, descriptor: int, lanes: int) -> None:
        self.lanes = lanes
        self._map = mmap.mmap(descriptor, size(lanes))
        whole = memoryview(self._map)
        bytes_at = 8 * (LANES + 2 * lanes)
        self.words = whole[:bytes_at].cast("Q")
        self.outcomes = whole[bytes_at:]

    def close(self) -> None:
        self.words.release()
        self.outcomes.release()

    def running(self, lane: int = 0) -> tuple[int, int]:
        """(what runs in the lane + 1, since when); (IDLE, …) if nothing does."""
        return self.words[LANES + 2 * lane], self.words[LANES + 2 * lane + 1]

    def stepping(self) -> int | None:
        """The lane whose step is running right now, where tasks share one thread."""
        lane = self.words[STEPPING]
        return lane - 1 if 0 < lane <= self.lanes else None

    def batch(self, slot: int, count: int) -> bytes:
        """How the messages of a batch ended so far."""
        return bytes(self.outcomes[slot * BATCH : slot * BATCH + count])

    def is_empty_behind(self, slot: int, count: int) -> bool:
        """Whether nothing is marked in a batch's place beyond its messages."""
        return not any(self.outcomes[slot * BATCH + count : (slot + 1) * BATCH])

    def clear(self, slot: int, count: int) -> None:
        """Make a batch's place ready for the next one. Only while the worker is not looking at it."""
        self.outcomes[slot * BATCH : (slot + 1) * BATCH] = _NOTHING
        self.words[END + slot] = count


def size(lanes: int) -> int:
    return 8 * (LANES + 2 * lanes) + max(BATCHES * BATCH, lanes)


def create(lanes: int) -> int:
    """A new memory file for a worker's marks; both sides get a descriptor of it."""
    descriptor = os.memfd_create("unpoison-marks", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size(lanes))
    idle = IDLE.to_bytes(8, sys.byteorder) + bytes(8)
    os.pwrite(descriptor, idle * lanes, 8 * LANES)
    return descriptor
