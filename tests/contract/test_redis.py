"""Redis keeps every promise. Those about kills at every line take longer: test_redis_kills.py."""

import pytest

from bezoar.testing.contract.dead_letters import *  # noqa: F403
from bezoar.testing.contract.delivering import *  # noqa: F403
from bezoar.testing.contract.hooks import *  # noqa: F403
from bezoar.testing.contract.operators import *  # noqa: F403
from bezoar.testing.contract.ownership import *  # noqa: F403
from bezoar.testing.contract.retrying import *  # noqa: F403
from bezoar.testing.contract.sharing import *  # noqa: F403
from bezoar.testing.contract.stopping import *  # noqa: F403
from bezoar.testing.contract.unwritable import *  # noqa: F403
from tests.contract.redis_lab import RedisLab


@pytest.fixture
def lab(folder, redis):
    with RedisLab(redis, folder) as lab:
        yield lab
