"""Which benchmarks are there? Each is a function that measures in rounds and returns rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.harness.figures import Row
from bench.harness.rounds import Rounds

Measure = Callable[[Rounds], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One table. `title` says what is compared; docs/performance.md says how."""

    name: str
    title: str
    measure: Measure
    rounds: int = 11


REGISTRY: dict[str, Benchmark] = {}


def benchmark(name: str, title: str, *, rounds: int = 11) -> Callable[[Measure], Measure]:
    """Register the decorated function. `rounds` is how many it takes unless told otherwise."""

    def decorate(measure: Measure) -> Measure:
        if name in REGISTRY:
            raise ValueError(f"two benchmarks are named {name!r}")
        REGISTRY[name] = Benchmark(name, title, measure, rounds)
        return measure

    return decorate
