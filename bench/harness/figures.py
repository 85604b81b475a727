"""What is a measurement, and when does it meet its goal? Plain values, kept as JSON between a run and the docs."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One timed stretch of work. `cpu` is what its process used, all threads and children included, in seconds.

    `server_cpu` is what the servers used meanwhile, where whoever asks has named them.
    """

    messages: int
    seconds: float
    cpu: float
    server_cpu: float = 0.0

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_per_message(self) -> float:
        """In microseconds."""
        return self.cpu / self.messages * 1e6


class Spread(msgspec.Struct, frozen=True):
    """The median of some figures, and how far apart they were."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        return cls(statistics.median(figures), min(figures), max(figures))


class Goal(msgspec.Struct, frozen=True):
    """What must hold for the median of a row: for its ratio, or for its figure."""

    of: Literal["ratio", "figure"]
    sense: Literal["≥", "≤", "<", "="]
    limit: float

    def met(self, median: float) -> bool:
        match self.sense:
            case "≥":
                return median >= self.limit
            case "≤":
                return median <= self.limit
            case "<":
                return median < self.limit
            case "=":
                return median == self.limit


class Row(msgspec.Struct, frozen=True):
    """One line of a table. The ratio is to the baseline of the same round; a row without one is not compared."""

    label: str
    figure: Spread
    unit: str
    ratio: Spread | None = None
    cpu: float | None = None
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        """None where there is no goal."""
        if self.goal is None:
            return None
        judged = self.ratio if self.goal.of == "ratio" else self.figure
        return judged is not None and self.goal.met(judged.median)


class Result(msgspec.Struct, frozen=True):
    """What one benchmark found, and where. `disturbed` rounds had others on the machine, however often they were repeated."""

    name: str
    title: str
    rows: Sequence[Row]
    rounds: int
    disturbed: int
    took: float
    day: str
    machine: str

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.met is False]


def compared(samples: dict[str, list[Sample]], baseline: str, goals: dict[str, Goal]) -> list[Row]:
    """A row for each side. Ratios are taken round by round: both sides of one had the same neighbours."""
    unknown = goals.keys() - samples.keys()
    if unknown:
        raise KeyError(f"goals for {sorted(unknown)}, but the sides are {sorted(samples)}")
    return [
        Row(
            label=label,
            figure=Spread.of([sample.rate for sample in taken]),
            unit="messages/s",
            ratio=Spread.of([mine.rate / theirs.rate for mine, theirs in zip(taken, samples[baseline], strict=True)]),
            cpu=statistics.median(sample.cpu_per_message for sample in taken),
            goal=goals.get(label),
        )
        for label, taken in samples.items()
    ]


def beside_first(taken: Mapping[str, Sequence[Sample]]) -> list[Row]:
    """What a message costs on each side, beside the first one; a quarter more at most."""
    first = next(iter(taken.values()))
    return [
        Row(
            label,
            Spread.of([1e6 / sample.rate for sample in samples]),
            "µs per message",
            ratio=Spread.of([one.rate / sample.rate for one, sample in zip(first, samples, strict=True)]),
            goal=None if samples is first else Goal("ratio", "≤", 1.25),
        )
        for label, samples in taken.items()
    ]
