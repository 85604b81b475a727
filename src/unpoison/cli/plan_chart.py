"""What the charts show: plans with their warnings, and the rows, labels and notes that the terminal and the SVG both draw."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from unpoison.cli.bars import FEW, bar, notes, room_for_bars, sparks, table
from unpoison.model.backoff import Limits
from unpoison.model.wording import counted, one_line
from unpoison.planning import (
    INSTANT,
    TOGETHER,
    Plan,
    Scenario,
    Step,
    Times,
    Traffic,
    Warned,
    busiest,
    described,
    histogram,
    lasting,
    number,
    per_second,
    percent,
    plan,
    warnings,
)

MOST_STEPS = 12


class LoadRow(NamedTuple):
    """One bar of the traffic chart. `length` is in messages or retries a second."""

    label: str
    rate: str
    added: str
    dead: str
    length: float


class BurstRow(NamedTuple):
    """The starts of messages that failed together."""

    label: str
    second: int
    instant: int
    burst: Times


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
    outage, share = lasting(plan.scenario.outage), plan.in_outage.dead / plan.scenario.traffic.rate
    return [
        "Worst case: a failing message fails all its retries too.",
        f"Same rate: each retry fails at {percent(plan.scenario.traffic.failing)} too.",
        f"Outage: all fail for {outage}; retries at its end, dead letters on average.",
        f"Of the messages that arrive in an outage of {outage}, {percent(share)} become dead letters.",
        "All this without breaker and retry budget. With them: unpoison plan --simulate",
    ]


def steps_shown(plan: Plan) -> Sequence[Step]:
    """All of them, or the first ones and the last."""
    steps = plan.schedule.steps
    return steps if len(steps) <= MOST_STEPS else (*steps[: MOST_STEPS - 1], steps[-1])


def delay_text(step: Step) -> str:
    return lasting(step.most) if step.least == step.most else f"0–{lasting(step.most)}"


def start_text(time: float, plan: Plan) -> str:
    """A time of a simulation is not known to three digits."""
    return lasting(time, 2 if plan.scenario.backoff.jitter else 3)


def schedule_notes(plan: Plan) -> list[str]:
    drawn = f"; {len(plan.schedule.starts[0]):,} messages simulated" if plan.scenario.backoff.jitter else ""
    note = f"Times count from the first failure, without the handler's own running time{drawn}."
    hidden = len(plan.schedule.steps) - len(steps_shown(plan))
    if not hidden:
        return [note]
    return [f"{counted(hidden, 'attempt')} before the last one {'is' if hidden == 1 else 'are'} not shown.", note]


BURST_TITLE = f"{TOGETHER} messages that fail together"


def burst_rows(plan: Plan) -> list[BurstRow]:
    is_on = plan.scenario.backoff.jitter
    return [
        BurstRow(f"{name}{' (as set)' if as_set else ''}", busiest(burst, 1.0), busiest(burst, INSTANT), burst)
        for name, as_set, burst in (("jitter", is_on, plan.jittered), ("no jitter", not is_on, plan.unjittered))
    ]


def burst_notes(plan: Plan) -> list[str]:
    """Without the second one, jitter seems to make things worse: more starts in a second than there are messages."""
    times = f"All {len(plan.jittered):,} retries, over the {lasting(plan.schedule.last.max)} within which the last one comes."
    again = "With jitter some start twice in their first second; a longer base spreads them further."
    return [times, again] if busiest(plan.jittered, 1.0) > TOGETHER else [times]


class Subject(NamedTuple):
    """One consumer, or the settings given as options (then `source` is None). Without a limit on attempts `plan` is None."""

    source: str | None
    limits: Limits
    plan: Plan | None
    warnings: Sequence[Warned]


def subject(source: str | None, limits: Limits, traffic: Traffic, outage: float, seed: int) -> Subject:
    """The plan for these limits."""
    age = None if limits.max_age is None else limits.max_age.total_seconds()
    if limits.max_attempts is None:
        return Subject(source, limits, None, [_no_limit(age)])
    made = plan(Scenario(traffic, limits.max_attempts, limits.backoff, outage, age, seed))
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


# How does a plan look in a terminal?


def chart(subject: Subject, width: int) -> RenderableType:
    """Everything about one consumer."""
    parts: list[RenderableType] = []
    if subject.source is not None:
        parts.append(Text(one_line(subject.source), style="bold"))
    if subject.plan is not None:
        parts += [Text(headline(subject.plan), style="bold"), Text(), *_traffic(subject.plan, width)]
        if subject.plan.scenario.retries:
            parts += [Text(), *_schedule(subject.plan, width)]
        if subject.plan.schedule.last.max:
            parts += [Text(), *_burst(subject.plan, width)]
    for warning in subject.warnings:
        parts += [Text(), Text.assemble(("Warning: ", "bold yellow"), warning.text)]
    return Group(*parts)


def _traffic(plan: Plan, width: int) -> list[RenderableType]:
    rows = load_rows(plan)
    cells = [(row.label, row.rate, row.added, row.dead) for row in rows]
    longest = max(row.length for row in rows)
    header = ("", "rate", "added", "dead letters")
    if room_for_bars(width, cells, header) < FEW:
        header = ("", "rate", "added", "dead")
    room = room_for_bars(width, cells, header)
    colours = ("blue", "yellow", "yellow", "red")
    bars = [bar(row.length / longest, room, colour) for row, colour in zip(rows, colours, strict=True)]
    return [Text("Retry traffic", style="bold"), table(header, cells, bars), *notes(load_notes(plan))]


def _schedule(plan: Plan, width: int) -> list[RenderableType]:
    header = ("attempt", "delay", "p50", "p90", "p99", "max")
    steps = steps_shown(plan)
    cells = [(f"{step.attempt:,}", delay_text(step), *_times(step, plan)) for step in steps]
    room = room_for_bars(width, cells, header)
    bars = [_layers(step, plan.schedule.last.max, room) for step in steps]
    legend = ["Bars: █ half have started by then, ▓ 90 %, ░ all."] if plan.scenario.backoff.jitter and room else []
    return [Text(backoff_line(plan), style="bold"), table(header, cells, bars), *notes([*schedule_notes(plan), *legend])]


def _burst(plan: Plan, width: int) -> list[RenderableType]:
    rows = burst_rows(plan)
    until = plan.schedule.last.max
    header = ("", "most in 1 s", f"in {lasting(INSTANT)}")
    cells = [(row.label, f"{row.second:,}", f"{row.instant:,}") for row in rows]
    buckets = room_for_bars(width, cells, header)
    histograms = [histogram(row.burst, max(buckets, 1), until) for row in rows]
    highest = max(map(max, histograms))
    bars = [Text(sparks(counts, highest) if buckets else "", style="cyan") for counts in histograms]
    return [Text(BURST_TITLE, style="bold"), table(header, cells, bars), *notes(burst_notes(plan))]


def _times(step: Step, plan: Plan) -> list[str]:
    start = step.start
    return [*(start_text(time, plan) for time in (start.p50, start.p90, start.p99)), lasting(start.max)]


def _layers(step: Step, longest: float, room: int) -> Text:
    if not room:
        return Text()
    half, most, all_of_them = (
        round(time / longest * room) if longest else 0 for time in (step.start.p50, step.start.p90, step.start.max)
    )
    return Text("█" * half + "▓" * (most - half) + "░" * (all_of_them - most) or "▏", style="cyan")
