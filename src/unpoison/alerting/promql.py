"""How are unpoison's metrics asked for in PromQL, so that a restart, a missed scrape or a second consumer changes nothing?"""

import re
from collections.abc import Sequence

from unpoison.errors import ConfigError

SCRAPES_MISSED = "5m"
"""A gauge keeps its last value for so long. A scrape that failed, or a consumer that restarts, must not end an alert or begin its
`for` again."""

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)


def checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels that tell fleets apart, besides the queue. Raises ConfigError if Prometheus has no such labels."""
    wrong = next((each for each in labels if not _LABEL.fullmatch(each)), None)
    if wrong is not None:
        raise ConfigError(f"{wrong!r} is not the name of a label. Write names such as job or namespace.")
    if "instance" in labels or "pod" in labels:
        raise ConfigError("Consumers of one queue differ in 'instance' and 'pod'; grouped by these, each would alert by itself.")
    return tuple(dict.fromkeys(each for each in labels if each != "queue"))


def gauge(way: str, metric: str, by: Sequence[str]) -> str:
    """A gauge of all consumers. Each of them reads the same broker, so `way` is max or min: a sum would count it twice."""
    return f"{way} by ({', '.join(by)}) (last_over_time({metric}[{SCRAPES_MISSED}]))"


def increase(metric: str, window: str, by: Sequence[str], *, known_for: str = "1h") -> str:
    """How far a counter has come within a window, over all consumers and their restarts.

    increase() needs two samples. A counter that was not there before the window has come from 0 to its value, which may be all
    of a bad deploy: everything has failed before the first scrape.
    """
    fresh = f"({metric} unless last_over_time({metric}[{known_for}] offset {window}))"
    return f"sum by ({', '.join(by)}) (\n  {fresh}\n  or increase({metric}[{window}])\n)"
