"""PostgreSQL keeps every promise."""

import pytest

from bezoar.testing.contract import *  # noqa: F403
from tests.contract.postgresql_lab import PostgreSQLLab


@pytest.fixture
def lab(folder, postgresql):
    with PostgreSQLLab(folder, postgresql.url) as lab:
        yield lab
        lab.drop()
