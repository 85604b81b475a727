"""Redis keeps every promise about isolated workers."""

import pytest

from tests.contract.redis_lab import RedisLab
from unpoison.testing.isolation.promises import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, redis):
    with RedisLab(redis, folder) as lab:
        yield lab
