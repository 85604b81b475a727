"""`unpoison plan --simulate`: what becomes of a source in an outage and the like, with and without its state machines."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import click
import msgspec

from unpoison.cli.bars import chart_width
from unpoison.cli.input_output import print_json
from unpoison.cli.screen import Advance, console, progress
from unpoison.cli.simulation_chart import Simulated, chart, simulated
from unpoison.control.options import DEFAULT_CONTROL
from unpoison.decide.options import ConsumerOptions
from unpoison.model.backoff import Limits
from unpoison.model.wording import counted
from unpoison.planning import lasting, number
from unpoison.simulation.run import Outcome, simulate
from unpoison.simulation.scenario import BEFORE, USUAL, Kind, Scenario, Variant, usual, variants

MOST_MESSAGES = 3_000_000
"""Messages of one simulation, and of those which are judged one by one."""
MOST_JUDGED = 300_000
LONGEST = 86_400.0
"""Seconds of trouble that are simulated at most: each of them is lived through, however little happens."""
LEGIBLE = 1e15
"""Larger numbers are not written out."""
SHOW_AFTER = 2.0
"""Seconds after which progress is shown."""
SERIES_EACH = 10
"""Seconds that one value of a series in the JSON document stands for."""


Planned: TypeAlias = Mapping[str | None, ConsumerOptions | Limits]
"""Consumers of an app by source, or the limits given as options, by None."""


class Asked(msgspec.Struct, frozen=True):
    """The options of a simulation. None where not given."""

    simulate: str | None
    length: float | None
    part: float | None
    capacity: float | None
    unnamed: bool
    each: bool

    def check(self, given: Mapping[str, bool]) -> None:
        """Options that would be ignored are refused. `given`: those of the plan that a simulation has no use for."""
        own = {"--length": self.length, "--share": self.part, "--capacity": self.capacity}
        stray = [name for name, value in own.items() if value is not None]
        stray += [name for name, is_set in (("--unnamed", self.unnamed), ("--each", self.each)) if is_set]
        if self.simulate is None:
            if stray:
                raise click.UsageError(f"{stray[0]} belongs to a simulation. Add --simulate, for example --simulate outage.")
            return
        for name, is_given in given.items():
            if is_given:
                raise click.UsageError(f"--simulate has no {name}. Leave it out; a simulation takes --length and --share.")
        kind = Kind(self.simulate)
        if self.part is not None and USUAL[kind].share is None:
            raise click.UsageError(f"--simulate {kind} concerns all messages, so it has no --share. Leave it out.")
        if self.unnamed and kind in (Kind.BAD_DEPLOY, Kind.THROTTLING):
            raise click.UsageError(f"In --simulate {kind} no dependency is down, so it has no --unnamed. Leave it out.")

    def scenario(self, rate: float | None, seed: int) -> Scenario:
        assert self.simulate is not None  # noqa: S101 - asked only then
        found = usual(
            Kind(self.simulate),
            rate=rate,
            length=self.length,
            share=self.part,
            capacity=self.capacity,
            is_named=not self.unnamed,
            seed=seed,
            each=self.each,
        )
        _check_size(found)
        return found


def _check_size(scenario: Scenario) -> None:
    """Refuse what would take for ever, and what would show nothing."""
    rate, lasts = f"{number(scenario.rate)} msg/s", lasting(scenario.length)
    if scenario.length > LONGEST:
        raise click.UsageError(f"{lasts} is too long: a simulation takes at most {lasting(LONGEST)}. Lower --length.")
    if scenario.rate * scenario.length < 1:
        raise click.UsageError(f"At {rate} no message comes in {lasts}, so nothing would happen. Raise --rate or --length.")
    if scenario.capacity < scenario.rate:
        able = f"Workers that can handle {number(scenario.capacity)} msg/s fall behind at {rate} though nothing is wrong"
        raise click.UsageError(f"{able}. Raise --capacity, or lower --rate.")
    messages = scenario.rate * (BEFORE + scenario.length)
    judged = messages * scenario.share if scenario.kind in (Kind.PARTIAL_OUTAGE, Kind.THROTTLING, Kind.POISON) else 0
    if messages > MOST_MESSAGES or judged > MOST_JUDGED:
        most = f"{counted(MOST_MESSAGES, 'message')}, or {MOST_JUDGED:,} that fail one by one"
        come = counted(round(messages), "message") if messages < LEGIBLE else f"{messages:.0e} messages"
        said = f"{come} would arrive, and a simulation takes at most {most}. Lower --rate or --length."
        raise click.UsageError(said)


def simulations(scenario: Scenario, consumers: Planned, *, each: bool) -> Sequence[Simulated]:
    """Simulate all of them. Shows progress on a terminal."""
    plans = {source: variants(scenario.kind, _as_set(options), each=each) for source, options in consumers.items()}
    with progress("Simulating") as advance:
        shares = _shares(sum(map(len, plans.values())), advance)
        return [
            simulated(source, scenario, [simulate(scenario, variant, next(shares)) for variant in planned])
            for source, planned in plans.items()
        ]


def _as_set(options: ConsumerOptions | Limits) -> Variant:
    if isinstance(options, Limits):
        return Variant("all on", DEFAULT_CONTROL, options)
    return Variant("as set", options.control, options.limits, options.source)


def _shares(count: int, advance: Advance | None) -> Iterator[Any]:
    """For each simulation, what it tells how much of it is over."""
    began = time.monotonic()
    for place in range(count):

        def tell(share: float, place: int = place) -> None:
            if advance is not None and time.monotonic() - began > SHOW_AFTER:
                advance(round(1_000 * (place + share)), 1_000 * count)

        yield tell


def document(shown: Simulated) -> dict[str, Any]:
    """The entry of one consumer. Times are seconds."""
    scenario = shown.scenario
    return {
        "source": shown.source,
        "scenario": str(scenario.kind),
        "rate": scenario.rate,
        "length": scenario.length,
        "share": scenario.share,
        "capacity": scenario.capacity,
        "dependency": shown.dependency,
        "is_named": scenario.is_named,
        "seed": scenario.seed,
        "variants": [_variant(each) for each in shown.outcomes],
    }


def _variant(outcome: Outcome) -> dict[str, Any]:
    variant = outcome.variant
    control = variant.control
    return {
        "name": variant.name,
        "max_attempts": variant.limits.max_attempts,
        "breaker": control.breaker is not None,
        "budget": control.budget,
        "admission": control.admission is not None,
        "throttle": variant.throttle,
        "simulated_share": round(1 / outcome.weight, 6),
        "done": round(outcome.done),
        "dead": round(outcome.dead),
        "left": round(outcome.left),
        "charged": {"most": outcome.most_charged, "finally": outcome.most_charged_finally},
        "put_off": {"most": outcome.most_put_off, "mean": round(outcome.mean_put_off, 3)},
        "calls": {
            "meanwhile": round(outcome.calls_meanwhile),
            "times_the_traffic": round(outcome.times_the_traffic, 6),
            "most_per_second": round(outcome.peak),
            "most_per_second_afterwards": round(outcome.peak_after),
        },
        "probes": {"count": outcome.probes, "most_per_second": outcome.most_probes},
        "works_again_after": _rounded(outcome.works_again),
        "caught_up_after": _rounded(outcome.caught_up),
        "decisions": outcome.changes,
        "told": [each._asdict() for each in outcome.told],
        "series": {
            "begins": -BEFORE,
            "seconds_each": SERIES_EACH,
            "calls_per_second": _series(outcome.calls),
            "waiting": _series(outcome.waiting),
        },
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _series(values: Sequence[float]) -> list[float]:
    parts = [values[at : at + SERIES_EACH] for at in range(0, len(values), SERIES_EACH)]
    return [round(sum(part) / len(part), 1) for part in parts]


def print_simulations(shown: Sequence[Simulated], *, as_json: bool) -> None:
    if as_json:
        print_json({"simulations": [document(each) for each in shown]})
        return
    screen = console()
    for place, each in enumerate(shown):
        if place:
            screen.print()
        screen.print(chart(each, chart_width(screen)))
