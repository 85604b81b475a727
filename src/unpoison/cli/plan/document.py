"""What does `unpoison plan --json` print?"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from unpoison.cli.plan.subject import Subject
from unpoison.planning.plan import TOGETHER, Load, Percentiles, Plan
from unpoison.planning.warnings import INSTANT

FIGURES = ("rate", "failing", "retries", "worst_case", "same_rate", "outage", "schedule", "last_start", "burst")


def document(subjects: Sequence[Subject]) -> dict[str, Any]:
    """One entry in `plans` for each consumer; where nothing limits the attempts its figures are null. Times are seconds."""
    return {"plans": [_entry(subject) for subject in subjects]}


def _entry(subject: Subject) -> dict[str, Any]:
    limits = subject.limits
    return {
        "source": subject.source,
        "max_attempts": limits.max_attempts,
        "backoff": msgspec.structs.asdict(limits.backoff),
        **_figures(subject.plan),
        "warnings": [asdict(warning) for warning in subject.warnings],
    }


def _figures(plan: Plan | None) -> dict[str, Any]:
    if plan is None:
        return dict.fromkeys(FIGURES)
    scenario = plan.scenario
    return {
        "rate": scenario.traffic.rate,
        "failing": scenario.traffic.failing,
        "retries": scenario.retries,
        "worst_case": _load(plan.worst),
        "same_rate": _load(plan.same_rate),
        "outage": {"seconds": scenario.outage, **_load(plan.in_outage)},
        "schedule": [
            {"attempt": step.attempt, "delay": [step.least, step.most], "start": _percentiles(step.start)}
            for step in plan.schedule.steps
        ],
        "last_start": _percentiles(plan.schedule.last),
        "burst": {"messages": TOGETHER, "jitter": _burst(plan, jitter=True), "no_jitter": _burst(plan, jitter=False)},
    }


def _load(load: Load) -> dict[str, float]:
    return {
        "retries_per_second": round(load.retries, 6),
        "amplification": round(load.amplification, 6),
        "dead_per_second": round(load.dead, 6),
    }


def _percentiles(start: Percentiles) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(start).items()}


def _burst(plan: Plan, *, jitter: bool) -> dict[str, int]:
    burst = plan.jittered if jitter else plan.unjittered
    return {"busiest_second": burst.busiest(1.0), "busiest_100ms": burst.busiest(INSTANT)}
