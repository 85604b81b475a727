"""Whose code is a frame of a traceback: the user's, a library's, Python's own, or ours?

It is told from the path alone, so that a traceback read on another machine, in a container or as the text of a stored letter
gives the same answer as the exception itself.
"""

import re
import sys
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache


class Whose(IntEnum):
    USERS = 0
    LIBRARYS = 1
    PYTHONS = 2
    OURS = 3


_TYPED_IN = ("<stdin", "<console", "<ipython-input", "<python-input")
"""Code that a person typed. What else is in angle brackets was generated, or is a frozen part of Python."""

_OURS = re.compile(
    r"(?:^|/)(?:(?:src|site-packages|dist-packages|[^/]+\.(?:whl|egg|zip|pyz|pex))/unpoison/"
    r"|unpoison/(?:classify|control|decide|flow|model|reporting|worker|workers)/[a-z_]+\.py)"
)
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|__pypackages__|[^/]+\.(?:whl|egg))/([^/.]+)")
_COMPILED = (".pyx", ".pxd", ".pxi")
_PYTHON = re.compile(r"(?:^|/)(?:lib(?:64)?/(?:python|pypy)3(?:\.\d+)?t?|python3\d+\.zip)/")
_ON_WINDOWS = re.compile(r"^(?:[A-Za-z]:|//).*/Lib/(?:([^/.]+))")

_WRAPPERS = frozenset(
    {"asgiref", "backoff", "ddtrace", "decorator", "elasticapm", "newrelic", "opentelemetry", "pydantic", "sentry_sdk", "stamina"}
    | {"tenacity", "wrapt"}
)
"""Libraries whose decorators stand between us and a handler."""


@lru_cache(maxsize=4096)
def whose(file: str) -> Whose:
    """By the path that a traceback shows."""
    if file.startswith("<"):
        return Whose.USERS if file.startswith(_TYPED_IN) else Whose.PYTHONS
    path = file.replace("\\", "/")
    if _OURS.search(path):
        return Whose.OURS
    if _LIBRARY.search(path) or path.endswith(_COMPILED):
        return Whose.LIBRARYS
    windows = _ON_WINDOWS.match(path)
    return Whose.PYTHONS if _PYTHON.search(path) or (windows and windows[1] in sys.stdlib_module_names) else Whose.USERS


def of_user(files: Sequence[str]) -> list[int]:
    """Which of these frames, outermost first, are of the user's code.

    An app may itself be installed as a package. If no frame is outside of the installed packages, the outermost one is of the
    handler, and what is in its package is the user's.
    """
    owners = [whose(file) for file in files]
    if outside := [n for n, owner in enumerate(owners) if owner is Whose.USERS]:
        return outside
    packages = [_package(file) if owner is Whose.LIBRARYS else "" for file, owner in zip(files, owners, strict=True)]
    app = next((package for package in packages if package and package not in _WRAPPERS), None)
    return [n for n, package in enumerate(packages) if package == app]


def _package(file: str) -> str:
    found = _LIBRARY.findall(file.replace("\\", "/"))
    return found[-1] if found else ""
