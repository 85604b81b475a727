"""The promises about isolated workers, for a broker that several processes can use. Import all of them into a test module:

    from unpoison.testing.isolation.promises import *

It needs a fixture `lab`, as `unpoison.testing.contract` does. They start, kill and count real processes, and take minutes.
"""

import importlib
import pkgutil

from unpoison.testing import contract

_NAMES = sorted(found.name for found in pkgutil.iter_modules(contract.__path__) if found.name.startswith("isolation_"))
TOPICS = [importlib.import_module(f"{contract.__name__}.{name}") for name in _NAMES]

PROMISES = {name: promise for topic in TOPICS for name, promise in vars(topic).items() if name.startswith("test_")}
"""Gathered and not listed by hand: a promise missing from a list would never be checked."""

globals().update(PROMISES)
__all__ = list(PROMISES)
