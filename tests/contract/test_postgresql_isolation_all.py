"""PostgreSQL keeps every promise about isolated workers."""

import pytest

from tests.contract.postgresql_lab import PostgreSQLLab
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, postgresql):
    with PostgreSQLLab(folder, postgresql.url) as lab:
        yield lab
        lab.drop()
