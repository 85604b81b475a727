"""The promises that every broker keeps. Import all of them into a test module that has a fixture `lab`."""

from unpoison.testing.contract import (
    dead_letters,
    delivering,
    explaining,
    faults,
    hooks,
    killing,
    natives,
    operators,
    ownership,
    publishing,
    reading,
    retrying,
    sharing,
    stopping,
    unwritable,
)

TOPICS = (
    delivering,
    publishing,
    reading,
    natives,
    retrying,
    dead_letters,
    operators,
    ownership,
    explaining,
    stopping,
    sharing,
    unwritable,
    hooks,
    faults,
    killing,
)

PROMISES = {name: promise for topic in TOPICS for name, promise in vars(topic).items() if name.startswith("test_")}
"""Gathered and not listed by hand: a promise that somebody forgot to list would never be checked."""

globals().update(PROMISES)
__all__ = list(PROMISES)
