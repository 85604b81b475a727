"""What the tests of the classifier share: real exceptions, ports that do not answer, and tables of cases."""

import socket

import pytest

from unpoison.classify.classifier import classify
from unpoison.classify.status_codes import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN

__all__ = ["BUG", "PERMANENT", "THROTTLED", "TRANSIENT", "UNKNOWN", "check", "closed_port", "deaf_port", "raised", "table"]


def raised(action, *arguments, **options):
    """The exception that an action really raises."""
    try:
        action(*arguments, **options)
    except BaseException as error:
        return error
    raise AssertionError(f"{action} raised nothing")


def table(*cases):
    """Cases named by the exception, so that a failing one says which it is."""
    names = [f"{n}-{type(error).__name__}" for n, (error, _) in enumerate(cases)]
    return pytest.mark.parametrize(("error", "expected"), cases, ids=names)


def check(error, expected, wait=None):
    found = classify(error)
    assert (found.classification, found.retry_after) == (expected, wait), (found.rule, error)
    assert found.charged is (expected is not THROTTLED)


def closed_port():
    """A port at which nobody listens: it is taken, so that nobody else can begin to, and refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def deaf_port():
    """A port that takes connections and never answers."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        yield deaf.getsockname()[1]
