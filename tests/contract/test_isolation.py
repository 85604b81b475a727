"""SQLite keeps every promise about isolated workers; memory:// lives in one process and has none."""

from bezoar.testing.contract.isolation_deaths import *  # noqa: F403
from bezoar.testing.contract.isolation_kills import *  # noqa: F403
from bezoar.testing.contract.isolation_lanes import *  # noqa: F403
from bezoar.testing.contract.isolation_neighbours import *  # noqa: F403
