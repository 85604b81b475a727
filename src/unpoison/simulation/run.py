"""Runs a scenario: the real `Consumer` with its state machines, between a line of messages and workers that are made up.

Nothing is sent, nothing waits and no clock is read: an hour takes seconds. The same scenario gives the same outcome.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from unpoison.decide.options import ConsumerOptions
from unpoison.flow.consumer import Consumer
from unpoison.simulation.crew import Crew
from unpoison.simulation.ledger import Ledger, Quiet, Told
from unpoison.simulation.line import Line
from unpoison.simulation.scenario import BEFORE, Kind, Scenario, Variant
from unpoison.simulation.trouble import trouble
from unpoison.workers.hooks import HookCaller

STEPS_PER_SECOND = 20
EPOCH = 1_700_000_000.0
"""What the calendar says when the simulation begins: any time does."""
MOST_STEPS = 1_000
"""Rounds of the consumer at one moment. If it goes on for longer, it would keep a processor busy while it has nothing to do."""
SETTLED = 10
"""Seconds for which no more may wait than usual: then the backlog is gone."""
SAMPLED_RATE = 15.0
"""Messages a second that are simulated of a consumer without any state machine: its messages do not affect each other."""
LEAST_WEIGHT = 2.0
"""Below that all are simulated: it takes no longer."""
SMOOTHED = 20
"""Seconds over which the calls of a sample are averaged: what they vary by more than that, they vary because they are few."""

Progress = Callable[[float], None]
"""Called with the share of the simulation that is over, about once a simulated second."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one variant. Times are seconds; series have a value for each second, from BEFORE the trouble on."""

    variant: Variant
    weight: float
    """How many messages a simulated one stands for."""
    calls: Sequence[float]
    """On the dependency."""
    waiting: Sequence[float]
    """Messages that have arrived and are neither done nor dead."""
    calls_meanwhile: float
    """While the trouble lasted."""
    times_the_traffic: float
    """The same, divided by the calls that the messages of that time would have made had all been well."""
    peak: float
    """The most calls in a second."""
    peak_after: float
    """The same, after the trouble."""
    done: float
    dead: float
    left: float
    """Still waiting at the end."""
    most_charged: int
    """Attempts that count, of the message that has most at any time."""
    most_charged_finally: int
    """The same when messages are done or dead: charges that others explain are taken back."""
    most_put_off: int
    """How often a message was put back uncharged, of the one that was put back most often; `mean_put_off` of those put back."""
    mean_put_off: float
    probes: int
    most_probes: int
    """In any one second."""
    works_again: float | None
    """Seconds from the end of the trouble to the first success."""
    caught_up: float | None
    """Seconds from the end of the trouble until no more messages wait than usual; None if that takes longer than is simulated."""
    changes: int
    """Decisions of the state machines."""
    told: Sequence[Told]
    """The first of them."""


def simulate(scenario: Scenario, variant: Variant, progress: Progress = lambda _: None) -> Outcome:
    """What becomes of a source."""
    simulation = Simulation(scenario, variant)
    for second in simulation.seconds():
        progress(min(1.0, second / (scenario.ends + scenario.length)))
    progress(1.0)
    return simulation.outcome()


class Simulation:
    """One variant of one scenario."""

    def __init__(self, scenario: Scenario, variant: Variant) -> None:
        self.scenario, self.variant, self._weight = scenario, variant, _weight(scenario, variant)
        self._step, self._now = 0, 0.0
        rate, per_step = scenario.rate / self._weight, scenario.capacity / self._weight / STEPS_PER_SECOND
        self.ledger = Ledger(scenario)
        self._line = Line(rate, scenario.seed, self._clock, self.ledger)
        meets = trouble(scenario, variant, self._weight)
        self._crew = Crew(per_step, meets, self._clock, self.ledger)
        self._consumer = self._started()
        self._usual_backlog, self._calm_since = 0, 0

    def _clock(self) -> float:
        return self._now

    def _started(self) -> Consumer:
        return Consumer(
            ConsumerOptions(self.variant.source, self.variant.limits, control=self.variant.control),
            self._line,
            self._crew,
            Quiet(self.ledger),
            HookCaller(has_on_retry=False, has_on_dlq=False),
            lambda: None,
            clock=lambda: EPOCH + self._now,
            monotonic=self._clock,
        )

    def seconds(self) -> Iterator[int]:
        """Run, until the backlog is gone or it has taken too long."""
        second = 0
        while not self._is_over(second):
            for _ in range(STEPS_PER_SECOND):
                self._advance()
            second += 1
            self.ledger.waiting.append(self._line.waiting())
            if second <= BEFORE:
                self._usual_backlog = max(self._usual_backlog, self.ledger.waiting[-1])
            yield second

    def _is_over(self, second: int) -> bool:
        if second < self.scenario.ends:
            return False
        if self.ledger.waiting[-1] > self._usual_backlog + math.ceil(self.scenario.rate / self._weight):
            self._calm_since = second + 1
        return second >= max(self._calm_since, self.scenario.ends) + SETTLED or second >= self.scenario.latest

    def _advance(self) -> None:
        self._step += 1
        before, self._now = self._now, self._step / STEPS_PER_SECOND
        self._crew.step()
        if self.scenario.kind is Kind.BAD_DEPLOY and self.scenario.is_on(before) != self.scenario.is_on(self._now):
            self._restart()
        for _ in range(MOST_STEPS):
            pause = self._consumer.step()
            if pause is None or pause > 0:
                return
        raise RuntimeError(f"The consumer does not come to rest at {self._now:g} s of {self.scenario.kind}.")

    def _restart(self) -> None:
        """Another version is deployed."""
        self._consumer.stop(0)
        while self._consumer.step() is not None:
            pass
        self.ledger.restarted()
        self._consumer = self._started()

    def outcome(self) -> Outcome:
        ledger, scenario, weight = self.ledger, self.scenario, self._weight
        seconds = len(ledger.waiting)
        counted = [*ledger.calls, *[0] * (seconds - len(ledger.calls))][:seconds]
        begins, ends = int(BEFORE), math.ceil(scenario.ends)
        calls, meanwhile = _smoothed(counted, weight), weight * sum(counted[begins:ends])
        is_over = seconds < scenario.latest
        return Outcome(
            variant=self.variant,
            weight=weight,
            calls=calls,
            waiting=[each * weight for each in ledger.waiting],
            calls_meanwhile=meanwhile,
            times_the_traffic=meanwhile / (scenario.calls_before * scenario.length),
            peak=max(calls),
            peak_after=max(calls[ends:], default=0.0),
            done=ledger.done * weight,
            dead=ledger.dead * weight,
            left=ledger.waiting[-1] * weight,
            most_charged=ledger.most_charged,
            most_charged_finally=ledger.most_charged_finally,
            most_put_off=ledger.most_put_off,
            mean_put_off=ledger.put_offs / max(1, ledger.messages_put_off),
            probes=len(ledger.probes),
            most_probes=most_in_a_second(ledger.probes),
            works_again=None if ledger.works_again_at is None else ledger.works_again_at - scenario.ends,
            caught_up=max(0.0, self._calm_since - scenario.ends) if is_over else None,
            changes=ledger.changes,
            told=tuple(ledger.told),
        )


def alike(scenario: Scenario, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """With series of the same length: what is over goes on as on an ordinary day."""
    longest = max(len(each.calls) for each in outcomes)
    return [_as_long(each, longest - len(each.calls), scenario.calls_before) for each in outcomes]


def _as_long(outcome: Outcome, missing: int, calls: float) -> Outcome:
    last = outcome.waiting[-SETTLED:]
    waiting = [*outcome.waiting, *[sum(last) / len(last)] * missing]
    return replace(outcome, calls=[*outcome.calls, *[calls] * missing], waiting=waiting)


def _weight(scenario: Scenario, variant: Variant) -> float:
    """How many messages a simulated one stands for."""
    alone = variant.is_off and scenario.kind in (Kind.OUTAGE, Kind.BAD_DEPLOY, Kind.PARTIAL_OUTAGE)
    weight = scenario.rate / SAMPLED_RATE
    return weight if alone and weight >= LEAST_WEIGHT else 1.0


def _smoothed(calls: Sequence[int], weight: float) -> list[float]:
    if weight == 1.0:
        return [float(each) for each in calls]
    half = SMOOTHED // 2
    windows = (calls[max(0, at - half) : at + half] for at in range(len(calls)))
    return [weight * sum(window) / len(window) for window in windows]


def most_in_a_second(times: Sequence[float]) -> int:
    most, first = 0, 0
    for place, time in enumerate(times):
        while times[first] <= time - 1.0 + 1e-9:
            first += 1
        most = max(most, place - first + 1)
    return most
