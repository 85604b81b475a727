"""PostgreSQL keeps the promises about isolated workers in which the broker has a part: who comes back, who is suspected, who is
charged. The others are the same on every broker; they run there too, in test_postgresql_isolation_all.py."""

import pytest

from tests.contract.postgresql_lab import PostgreSQLLab
from unpoison.testing.contract.isolation_kills import *  # noqa: F403


@pytest.fixture
def lab(folder, postgresql):
    with PostgreSQLLab(folder, postgresql.url) as lab:
        yield lab
        lab.drop()
