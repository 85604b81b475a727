"""Which metrics are there, and what does each of them say about a source? The names and labels stay: rules are written with them.

Everything is read when it is asked for. Nothing of it locks a consumer or waits for a broker.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from unpoison.observing.look import Look, Watched
from unpoison.port.at_broker import AtBroker
from unpoison.reporting.consumer_state import ConsumerState
from unpoison.reporting.numbers import BOUNDS, Durations

_UPPER = (*map(floatToGoString, BOUNDS), "+Inf")


Value = float | None
Values = Mapping[Any, int]
"""By what stands in the second label: text."""
Ask = Callable[[Look], Value | Values]


class Family(NamedTuple):
    """A metric of every source. `label`: the second one; then `ask` gives a value for each of its values."""

    name: str
    help: str
    ask: Ask
    label: str = ""

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")

    def metric(self, looks: Mapping[str, Look]) -> Metric:
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        found = kind(self.name, self.help, labels=["queue", self.label] if self.label else ["queue"])
        for queue, look in looks.items():
            value = self.ask(look)
            for labels, number in _samples(queue, value):
                found.add_metric(labels, number)
        return found


def _samples(queue: str, value: Value | Values) -> Iterator[tuple[list[str], float]]:
    if isinstance(value, Mapping):
        yield from (([queue, _printable(each)], number) for each, number in value.items())
    elif value is not None:
        yield [queue], value


def _printable(text: str) -> str:
    """A name that cannot be encoded would cost all other metrics."""
    return text.encode("utf-8", "backslashreplace").decode()


def _of_state(ask: Callable[[ConsumerState], Value]) -> Ask:
    return lambda look: None if look.state is None else ask(look.state)


def _of_broker(ask: Callable[[AtBroker], Value]) -> Ask:
    return lambda look: None if look.broker is None else ask(look.broker)


FAMILIES = (
    Family("poison_pills_total", "Dead letters made by this process.", lambda look: look.counts.pills, "classification"),
    Family("message_retries_total", "Retries scheduled.", lambda look: look.counts.retries),
    Family("dlq_depth", "Dead letters that wait, at the broker and in the store.", lambda look: look.dead),
    Family("unpoison_messages_handled_total", "Messages handled without a failure.", lambda look: look.counts.handled),
    Family("unpoison_messages_discarded_total", "Messages discarded by their handler.", lambda look: look.counts.discarded),
    Family("unpoison_starts_total", "Handler starts that have ended.", lambda look: look.numbers.starts),
    Family("unpoison_failures_total", "Starts that failed.", lambda look: look.counts.failures, "classification"),
    Family(
        "unpoison_attempts_over_limit_total",
        "Starts of messages that had used up max_attempts before.",
        lambda look: look.numbers.over_limit,
    ),
    Family("unpoison_messages_in_flight", "Messages that this process has in hand.", _of_state(lambda state: state.in_flight)),
    Family("unpoison_source_depth", "Messages at the broker.", lambda look: look.depths, "state"),
    Family(
        "unpoison_source_oldest_seconds", "Age of the message that has been ready for longest.", _of_broker(lambda at: at.oldest)
    ),
    Family("unpoison_consumer_lag", "Messages of the log that the group has not finished.", _of_broker(lambda at: at.lag)),
    Family("unpoison_source_paused", "1 while the source is paused.", lambda look: look.pauses, "reason"),
    Family("unpoison_breaker_state", "0 closed, 1 recovering, 2 open.", lambda look: look.breakers, "dependency"),
    Family(
        "unpoison_retry_budget_left_ratio",
        "Of the retry budget: 1 unused, 0 used up.",
        _of_state(lambda state: state.budget_left),
    ),
    Family(
        "unpoison_retries_put_off_total",
        "Retries put off because the retry budget was used up.",
        lambda look: 0 if look.state is None else look.state.put_off,
    ),
    Family(
        "unpoison_throttled", "1 while a dependency throttles the source.", _of_state(lambda state: float(state.is_throttled))
    ),
    Family(
        "unpoison_worker_ends_total",
        "Worker processes that did not end by themselves.",
        lambda look: look.numbers.worker_ends,
        "kind",
    ),
    Family(
        "unpoison_messages_recovered_total",
        "Messages that came back from a consumer or worker that had died with them.",
        lambda look: look.numbers.recovered,
    ),
    Family(
        "unpoison_dlq_writable",
        "0 while dead letters cannot be stored.",
        _of_state(lambda state: float(state.is_dlq_writable)),
    ),
    Family(
        "unpoison_retention_used_ratio",
        "How much of the broker's retention the oldest waiting message has used.",
        lambda look: look.retention_used,
    ),
    Family("unpoison_consumer_running", "1 while the consumer turns.", lambda look: float(look.is_running)),
    Family("unpoison_depth_read_timestamp_seconds", "When depths were last read.", lambda look: look.read_at),
    Family("unpoison_depth_read_errors_total", "Reads of depths that failed.", lambda look: look.read_errors),
)


class Families(Collector):
    """Everything about the sources of a process."""

    def __init__(self, watched: Mapping[str, Watched], version: str, code_version: str) -> None:
        self._watched, self._version, self._code_version = watched, version, code_version

    def collect(self) -> Iterable[Metric]:
        looks = {_printable(queue): Look(watched) for queue, watched in list(self._watched.items())}
        yield from (family.metric(looks) for family in FAMILIES)
        yield _durations(looks)
        yield _store(looks.values())
        info = GaugeMetricFamily("unpoison_info", "Always 1.", labels=["version", "code_version"])
        info.add_metric([self._version, _printable(self._code_version)], 1)
        yield info

    def describe(self) -> Iterable[Metric]:
        return ()


def _durations(looks: Mapping[str, Look]) -> Metric:
    found = HistogramMetricFamily("unpoison_handler_seconds", "How long handlers ran.", labels=["queue"])
    for queue, look in looks.items():
        if look.numbers.durations is not None:
            found.add_metric([queue], list(_buckets(look.numbers.durations)), look.numbers.durations.total / 1e9)
    return found


def _buckets(durations: Durations) -> Iterator[tuple[str, float]]:
    so_far = 0
    for bound, count in zip(_UPPER, list(durations.counts), strict=True):
        so_far += count
        yield bound, so_far


def _store(looks: Iterable[Look]) -> Metric:
    found = GaugeMetricFamily("unpoison_store_up", "1 while the store answers, 0 while it is away.")
    answers = [look.state.is_store_up for look in looks if look.state is not None and look.state.is_store_up is not None]
    if answers:
        found.add_metric([], float(all(answers)))
    return found
