"""Redis keeps every promise. Those about kills at every line take longer: test_redis_kills.py."""

import pytest

from tests.contract.redis_lab import RedisLab
from unpoison.testing.contract.quick import *  # noqa: F403


@pytest.fixture
def lab(folder, redis):
    with RedisLab(redis, folder) as lab:
        yield lab
