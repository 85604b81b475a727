"""Make names that nothing else has."""

import itertools
import os
import time

_process, _count, _pid = [os.urandom(6).hex()], itertools.count(), [os.getpid()]
_last = [0]


def unique() -> str:
    """A name that nothing else has."""
    if os.getpid() != _pid[0]:  # a forked child must not go on with its parent's numbers
        _pid[0], _process[0] = os.getpid(), os.urandom(6).hex()
    return f"{_process[0]}{next(_count):x}"


def new_letter_id(source: str) -> str:
    """The id of a new dead letter. It grows with time, so that sorting by id is sorting by age."""
    _last[0] = max(_last[0] + 1, time.time_ns() // 1000)
    return f"{source}-{_last[0]:014x}{unique()}"
