"""PostgreSQL keeps every promise. Those about kills at every line take long: test_postgresql_kills.py."""

import pytest

from tests.contract.postgresql_lab import PostgreSQLLab
from unpoison.testing.contract.quick import *  # noqa: F403


@pytest.fixture
def lab(folder, postgresql):
    with PostgreSQLLab(folder, postgresql.url) as lab:
        yield lab
        lab.drop()
