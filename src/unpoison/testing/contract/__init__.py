"""The promises that every broker keeps. Import all of them into a test module that has a fixture `lab`."""

from unpoison.testing.contract import (
    consuming,
    dead_letters,
    delivering,
    fleet,
    flow_control,
    killing,
    letters_elsewhere,
    ownership,
    pausing,
    publishing,
    retrying,
    sharing,
)

TOPICS = (
    delivering,
    publishing,
    retrying,
    dead_letters,
    letters_elsewhere,
    sharing,
    ownership,
    pausing,
    consuming,
    flow_control,
    fleet,
    killing,
)

PROMISES = {name: promise for topic in TOPICS for name, promise in vars(topic).items() if name.startswith("test_")}
"""Gathered and not listed by hand: a promise missing from a list would never be checked."""

globals().update(PROMISES)
__all__ = list(PROMISES)
