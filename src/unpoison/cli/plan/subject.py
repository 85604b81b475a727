"""Whose settings are planned with: those of options, or of the consumers of an app?"""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from unpoison.cli.loading import load
from unpoison.model.backoff import Limits
from unpoison.model.wording import counted
from unpoison.planning.plan import Plan, Scenario, Traffic, plan
from unpoison.planning.warnings import Warned, lasting, warnings


@dataclass(frozen=True, slots=True)
class Subject:
    """One consumer, or the settings given as options (then `source` is None). Without a limit there is no plan."""

    source: str | None
    limits: Limits
    plan: Plan | None
    warnings: Sequence[Warned]


@dataclass(frozen=True, slots=True)
class Weather:
    """What the settings are to stand."""

    traffic: Traffic
    outage: float
    seed: int


def subject(source: str | None, limits: Limits, weather: Weather) -> Subject:
    """The plan for these limits."""
    age = None if limits.max_age is None else limits.max_age.total_seconds()
    if limits.max_attempts is None:
        return Subject(source, limits, None, [_no_limit(age)])
    scenario = Scenario(weather.traffic, limits.max_attempts, limits.backoff, weather.outage, age, weather.seed)
    made = plan(scenario)
    return Subject(source, limits, made, [*warnings(made), *_policies(limits, limits.max_attempts)])


def subjects_of(reference: str, source: str | None, weather: Weather) -> list[Subject]:
    """The consumers of an app, or one of them. The app is imported and not run."""
    consumers = load(reference).consumers
    if not consumers:
        raise click.UsageError(f"{reference!r} has no consumer, so there is nothing to plan. Plan with --attempts and --base.")
    if source is not None and source not in consumers:
        known = ", ".join(map(repr, consumers))
        raise click.UsageError(f"{reference!r} has no consumer of {source!r}. Its sources are {known}.")
    chosen = list(consumers) if source is None else [source]
    return [subject(name, consumers[name].options.limits, weather) for name in chosen]


def _no_limit(age: float | None) -> Warned:
    end = "for ever" if age is None else f"until they are {lasting(age)} old (max_age)"
    return Warned(
        "no-limit",
        f"max_attempts is None: failing messages come back {end}, and no bound can be given for retries. Set max_attempts, "
        "and try figures with --attempts.",
    )


def _policies(limits: Limits, attempts: int) -> list[Warned]:
    if limits.by_policy <= attempts:
        return []
    return [
        Warned(
            "policy",
            f"A policy allows some exceptions {counted(limits.by_policy, 'attempt')}; these figures are for {attempts}. "
            f"To see its own: unpoison plan --attempts {limits.by_policy}",
        )
    ]
