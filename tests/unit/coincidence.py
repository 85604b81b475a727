"""How often is an innocent message dead-lettered because consumers happened to be killed while it ran?

python -m tests.unit.coincidence
"""

from tests.unit.simulated_messages import Behaviour
from tests.unit.simulated_workers import Staff
from tests.unit.simulation import Scene, World, run

MESSAGES = 120
LIMIT = 5
LONGEST = 40


def scene(every: int, *, messages: int = MESSAGES, limit: int = LIMIT) -> Scene:
    """Innocent messages only, with handlers of 1 to 40 ticks, while each consumer is killed about once in `every` ticks."""
    return Scene(
        limit=limit,
        staff=Staff("batch", workers=4, lanes=1, batch=2),
        behaviours=[Behaviour("innocent", takes=(1, LONGEST))] * messages,
        processes=3,
        kill=1 / every,
        troubled=10**9,
        drained=10**6,
    )


def dead(world: World) -> int:
    return sum(life.outcome == "dead" for life in world.lives.values())


def report(worlds: int = 300) -> None:
    print(f"limit {LIMIT}, handlers of 1–{LONGEST} ticks, {worlds} worlds of {MESSAGES} innocent messages")
    for every in (33, 100, 333, 1000):
        lived = [run(seed, scene(every)) for seed in range(worlds)]
        starts = sum(life.starts_ever for world in lived for life in world.lives.values())
        total = worlds * MESSAGES
        lost = sum(map(dead, lived))
        print(f"consumers killed every {every:4} ticks: {lost:4} of {total:,} dead-lettered, {starts / total:.2f} starts each")


if __name__ == "__main__":
    report()
