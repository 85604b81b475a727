"""What the charts show: plans with their warnings, and the rows, labels and notes that the terminal and the SVG both draw."""

from collections.abc import Sequence
from dataclasses import dataclass

from unpoison.model.backoff import Limits
from unpoison.model.wording import counted
from unpoison.planning.plan import TOGETHER, Burst, Plan, Scenario, Step, Traffic, plan
from unpoison.planning.warnings import INSTANT, Warned, described, lasting, number, per_second, percent, warnings

MOST_STEPS = 12


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One bar of the traffic chart. `length` is in messages or retries a second."""

    label: str
    rate: str
    added: str
    dead: str
    length: float


@dataclass(frozen=True, slots=True)
class BurstRow:
    """The starts of messages that failed together."""

    label: str
    second: int
    instant: int
    burst: Burst


def headline(plan: Plan) -> str:
    traffic, retries = plan.scenario.traffic, plan.scenario.retries
    attempts, again = counted(plan.scenario.attempts, "attempt"), counted(retries, "retry", "retries")
    return f"{number(traffic.rate)} msg/s, {percent(traffic.failing)} failing, {attempts} ({again})"


def backoff_line(plan: Plan) -> str:
    return f"Backoff: {described(plan.scenario.backoff)}"


def load_rows(plan: Plan) -> list[LoadRow]:
    cases = (
        ("retries, worst case", plan.worst),
        ("retries, same rate", plan.same_rate),
        ("retries in an outage", plan.in_outage),
    )
    rate = plan.scenario.traffic.rate
    return [
        LoadRow("first attempts", per_second(rate), "", "", rate),
        *(
            LoadRow(label, per_second(load.retries), f"+{percent(load.amplification)}", per_second(load.dead), load.retries)
            for label, load in cases
        ),
    ]


def load_notes(plan: Plan) -> list[str]:
    return [
        "Worst case: a message that fails fails all its retries.",
        f"Same rate: each retry fails at {percent(plan.scenario.traffic.failing)} too.",
        f"Outage: all fail for {lasting(plan.scenario.outage)}; retries as at its end, dead letters on average.",
    ]


def steps_shown(plan: Plan) -> Sequence[Step]:
    """All of them, or the first ones and the last."""
    steps = plan.schedule.steps
    return steps if len(steps) <= MOST_STEPS else (*steps[: MOST_STEPS - 1], steps[-1])


def left_out(plan: Plan) -> str:
    hidden = len(plan.schedule.steps) - len(steps_shown(plan))
    return f"{counted(hidden, 'attempt')} before the last one {'is' if hidden == 1 else 'are'} not shown." if hidden else ""


def delay_text(step: Step) -> str:
    return lasting(step.most) if step.least == step.most else f"0–{lasting(step.most)}"


def start_text(time: float, plan: Plan) -> str:
    """A time of a simulation is not known to three digits."""
    return lasting(time, 2 if plan.scenario.backoff.jitter else 3)


def time_note(plan: Plan) -> str:
    drawn = f"; {len(plan.schedule.starts[0]):,} messages simulated" if plan.scenario.backoff.jitter else ""
    return f"Times count from the first failure, without the handler's own running time{drawn}."


def dead_note(plan: Plan) -> str:
    share = plan.in_outage.dead / plan.scenario.traffic.rate
    return f"Of the messages that arrive in an outage of {lasting(plan.scenario.outage)}, {percent(share)} become dead letters."


def burst_title() -> str:
    return f"{TOGETHER} messages that fail together"


def burst_rows(plan: Plan) -> list[BurstRow]:
    is_on = plan.scenario.backoff.jitter
    return [
        BurstRow(f"{name}{' (as set)' if as_set else ''}", burst.busiest(1.0), burst.busiest(INSTANT), burst)
        for name, as_set, burst in (("jitter", is_on, plan.jittered), ("no jitter", not is_on, plan.unjittered))
    ]


def burst_notes(plan: Plan) -> list[str]:
    """Without the second one, jitter seems to make things worse: more starts in a second than there are messages."""
    times = f"All {len(plan.burst.times):,} retries, over the {lasting(plan.schedule.last.max)} that the last may take."
    again = "With jitter some start twice in their first second; a longer base spreads them further."
    return [times, again] if plan.jittered.busiest(1.0) > TOGETHER else [times]


@dataclass(frozen=True, slots=True)
class Subject:
    """One consumer, or the settings given as options (then `source` is None). Without a limit on attempts `plan` is None."""

    source: str | None
    limits: Limits
    plan: Plan | None
    warnings: Sequence[Warned]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The traffic and the outage that the settings are planned for."""

    traffic: Traffic
    outage: float
    seed: int


def subject(source: str | None, limits: Limits, conditions: Conditions) -> Subject:
    """The plan for these limits."""
    age = None if limits.max_age is None else limits.max_age.total_seconds()
    if limits.max_attempts is None:
        return Subject(source, limits, None, [_no_limit(age)])
    scenario = Scenario(conditions.traffic, limits.max_attempts, limits.backoff, conditions.outage, age, conditions.seed)
    made = plan(scenario)
    return Subject(source, limits, made, [*warnings(made), *_policies(limits, limits.max_attempts)])


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
