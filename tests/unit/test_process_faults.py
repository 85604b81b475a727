"""Which exceptions speak against the process they were raised in?"""

import errno
import os

import pytest

from unpoison.classify.classifier import blames_process
from unpoison.decide.policy import PoisonPillHandler
from unpoison.model.message import MessageMetadata


def raised_from(outer, inner):
    outer.__cause__ = inner
    return outer


def while_handling(outer, inner):
    outer.__context__ = inner
    return outer


def hushed(outer, inner):
    outer.__context__, outer.__suppress_context__ = inner, True
    return outer


class Hostile(Exception):
    def __getattribute__(self, name):
        raise RuntimeError("no")


EBADF = OSError(errno.EBADF, "Bad file descriptor")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (SystemError("error return without exception set"), True),
        (EBADF, True),
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.ENOTSOCK, "Socket operation on non-socket"), True),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("cannot schedule new futures after shutdown"), True),
        (RuntimeError("cannot schedule new futures after interpreter shutdown"), True),
        (RuntimeError("Event loop is closed"), True),
        (raised_from(ConnectionError("lost"), EBADF), True),
        (while_handling(KeyError("id"), MemoryError()), True),
        (hushed(KeyError("id"), MemoryError()), False),
        (RuntimeError("out of stock"), False),
        (OSError(errno.ENOENT, "No such file"), False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), False),
        (OSError("no number"), False),
        (ValueError("can't start new thread"), False),
        (RecursionError(), False),
        pytest.param(Hostile(), False, id="hostile"),
    ],
)
def test_memory_descriptors_and_threads_that_are_used_up_speak_against_the_process(error, expected):
    assert blames_process(error) is expected


def test_a_chain_that_bites_its_own_tail_ends():
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert not blames_process(first)


def test_a_failure_carries_it():
    def bad_descriptor():
        reading, writing = os.pipe()
        os.close(reading)
        os.close(writing)
        os.read(reading, 1)

    handler = PoisonPillHandler()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number says which
        bad_descriptor()
    assert handler.failure(caught.value, MessageMetadata("m")).blames_process
    assert not handler.failure(ValueError(), MessageMetadata("m")).blames_process
