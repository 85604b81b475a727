"""What is an alert, and what can be set about all of them?"""

from dataclasses import dataclass

RUNBOOK = "https://unpoison.readthedocs.io/en/latest/runbook/"
"""In the documentation that pyproject.toml names."""

PAGE, TICKET = "page", "ticket"
"""Wake somebody; or let somebody look at it in working hours."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What differs from one company to the next. All else is what unpoison's own behaviour makes of it."""

    depth: int = 100
    oldest: float = 900.0
    share: float = 0.01
    labels: tuple[str, ...] = ("job",)
    """They tell fleets apart that have queues of the same name."""
    runbook: str = RUNBOOK

    @property
    def by(self) -> tuple[str, ...]:
        return (*self.labels, "queue")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `lasting` is for how long its expression must be true."""

    name: str
    severity: str
    lasting: str
    expression: str
    summary: str
    meaning: str
    first: str
    """What to do first: a sentence that goes on after that word."""


@dataclass(frozen=True, slots=True)
class Record:
    """A figure that alerts and dashboards share. Records of one name differ in their labels."""

    name: str
    labels: tuple[tuple[str, str], ...]
    expression: str


def runbook_link(base: str, alert: str) -> str:
    """The section of the runbook about an alert: its anchor is the name of the alert."""
    return f"{base}#{alert}"
