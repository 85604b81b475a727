"""PostgreSQL keeps the promises about kills at every line."""

import pytest

from bezoar.testing.contract.killing import *  # noqa: F403
from tests.contract.postgresql_lab import PostgreSQLLab

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, postgresql):
    with PostgreSQLLab(folder, postgresql.url) as lab:
        yield lab
        lab.drop()
