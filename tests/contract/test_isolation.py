"""SQLite keeps every promise about isolated workers. memory:// lives in one process and has none, so it is not asked."""

import pytest

from tests.contract.labs import SQLiteLab
from unpoison.testing.isolation.promises import *  # noqa: F403


@pytest.fixture
def lab(folder):
    with SQLiteLab(folder) as lab:
        yield lab
