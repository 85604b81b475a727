"""Redis keeps the promises about kills at every line."""

import pytest

from tests.contract.redis_lab import RedisLab
from unpoison.testing.contract.killing import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, redis):
    with RedisLab(redis, folder) as lab:
        yield lab
