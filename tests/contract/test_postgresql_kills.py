"""PostgreSQL keeps the promises about kills at every line."""

import pytest

from tests.contract.postgresql_lab import PostgreSQLLab
from unpoison.testing.contract.killing import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, postgresql):
    with PostgreSQLLab(folder, postgresql.url) as lab:
        yield lab
        lab.drop()
