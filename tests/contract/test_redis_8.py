"""A current Redis keeps the promises in which the server has a part."""

import pytest

from tests.contract.redis_lab import RedisLab
from unpoison.testing.contract.dead_letters import *  # noqa: F403
from unpoison.testing.contract.delivering import *  # noqa: F403
from unpoison.testing.contract.isolation_suspects import *  # noqa: F403
from unpoison.testing.contract.operators import *  # noqa: F403
from unpoison.testing.contract.ownership import *  # noqa: F403
from unpoison.testing.contract.retrying import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture
def lab(folder, redis_8):
    with RedisLab(redis_8, folder) as lab:
        yield lab
