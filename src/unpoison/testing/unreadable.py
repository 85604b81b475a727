"""How is an adapter made to fail on one message? By a fault in the code that reads it."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec


class ReadingFault(Exception):
    """Stands for a fault of our own in the code that reads messages."""


@contextmanager
def failing_on(marker: bytes, functions: Sequence[str]) -> Iterator[None]:
    """While this lasts these functions raise when an argument of theirs holds these bytes."""
    with ExitStack() as patches:
        for name in functions:
            owner, attribute = _owner(name)
            patches.enter_context(patch.object(owner, attribute, _failing(getattr(owner, attribute), marker)))
        yield


def _owner(name: str) -> tuple[Any, str]:
    """The module or class that holds what this name says, and under which attribute."""
    path, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(path), attribute
    except ModuleNotFoundError:
        owner, inner = _owner(path)
        return getattr(owner, inner), attribute


def _failing(function: Callable[..., Any], marker: bytes) -> Callable[..., Any]:
    def failing(*arguments: Any) -> Any:
        if any(_holds(each, marker) for each in arguments):
            raise ReadingFault("this message cannot be read")
        return function(*arguments)

    return failing


def _holds(value: Any, marker: bytes) -> bool:
    """Whether a native message, or a batch of them, holds these bytes."""
    if isinstance(value, bytes):
        return marker in value
    if isinstance(value, str):
        return marker.decode() in value
    if isinstance(value, Mapping):
        return any(_holds(each, marker) for each in value.values())
    if isinstance(value, list | tuple):
        return any(_holds(each, marker) for each in value)
    if isinstance(value, msgspec.Struct):
        return _holds(msgspec.structs.astuple(value), marker)
    content = getattr(value, "value", None)  # a record of Kafka
    return callable(content) and _holds(content(), marker)
