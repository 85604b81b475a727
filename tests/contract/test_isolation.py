"""SQLite keeps every promise about isolated workers; memory:// lives in one process and has none."""

from bezoar.testing.contract.isolation_costs import *  # noqa: F403
from bezoar.testing.contract.isolation_deaths import *  # noqa: F403
from bezoar.testing.contract.isolation_dossiers import *  # noqa: F403
from bezoar.testing.contract.isolation_hooks import *  # noqa: F403
from bezoar.testing.contract.isolation_kills import *  # noqa: F403
from bezoar.testing.contract.isolation_lanes import *  # noqa: F403
from bezoar.testing.contract.isolation_neighbours import *  # noqa: F403
from bezoar.testing.contract.isolation_starts import *  # noqa: F403
from bezoar.testing.contract.isolation_stops import *  # noqa: F403
from bezoar.testing.contract.isolation_suspects import *  # noqa: F403
