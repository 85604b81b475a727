"""Redis keeps every promise about isolated workers."""

import pytest

from bezoar.testing.isolation.promises import *  # noqa: F403
from tests.contract.redis_lab import RedisLab

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, redis):
    with RedisLab(redis, folder) as lab:
        yield lab
