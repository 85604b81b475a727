"""Which panels does the dashboard have, in which rows, and what does each of them ask Prometheus?

Depths are those of the broker, which each consumer reads for itself, so they are asked by max. What a consumer counts is summed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CHOSEN = '{job=~"$job", queue=~"$queue"}'
"""The queues that are chosen at the top of the dashboard."""
_LIMITED = 'job=~"$job", queue=~"$queue"'

WIDTH = 24
"""Of a row, in Grafana's units."""


@dataclass(frozen=True, slots=True)
class Query:
    """`legend` names a line. Without it the query asks for the end of the time range alone."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `alert` is the section of the runbook that it is about; `words` what a figure means."""

    title: str
    kind: str
    width: int
    about: str
    queries: tuple[Query, ...]
    unit: str = "short"
    alert: str = ""
    words: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Figure → text and colour."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Of a table: label → heading, in this order."""
    steps: tuple[tuple[float, str], ...] = ()
    """From which figure on it has which colour."""


def _increase(metric: str, window: str, *by: str, limit: str = "") -> str:
    return f"sum by ({', '.join(by)}) (increase({metric}{{{_LIMITED}{limit}}}[{window}]))"


def _rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{CHOSEN}[$__rate_interval]))"


def _top(metric: str, *by: str) -> str:
    return f"max by ({', '.join(by)}) ({metric}{CHOSEN})"


_DEPTH = f"max by (job, queue) (dlq_depth{CHOSEN})"
_NEW = f"sum(increase(poison_pills_total{CHOSEN}[$__range]))"
_DONE = f"sum(increase(unpoison_messages_handled_total{CHOSEN}[$__range]))"
_BUCKETS = _rate("unpoison_handler_seconds_bucket", "le", "queue")
_MOMENTS = f"(timestamp({_increase('poison_pills_total', '$__rate_interval', 'queue')} > 0))[$__range:$__interval]"
_GREEN_THEN_RED = ((0, "green"), (1, "red"))
_RED_THEN_GREEN = ((0, "red"), (1, "green"))
_CLASSES = {"queue": "Queue", "classification": "Class", "Value": "New dead letters"}
_ALERTS = {"alertname": "Alert", "queue": "Queue", "severity": "Severity", "alertstate": "State"}

POISONED = (
    Panel(
        "Dead letters", "stat", 4, "Messages that wait for a person, at the broker and in the store.",
        (Query(f"sum({_DEPTH})"),), alert="UnpoisonManyDeadLetters", steps=((0, "green"), (1, "orange"), (100, "red")),
    ),
    Panel(
        "Queues with dead letters", "stat", 4, "How many of the chosen queues have any.",
        (Query(f"count({_DEPTH} > 0) or vector(0)"),), alert="UnpoisonDeadLettersGrowing", steps=_GREEN_THEN_RED,
    ),
    Panel(
        "Alerts", "table", 16, "The alerts of unpoison alerts that are pending or fire. A click opens the runbook.",
        (Query('ALERTS{alertname=~"Unpoison.+", job=~"$job", queue=~"$queue|"}'),), columns=_ALERTS,
    ),
    Panel(
        "New dead letters by class", "table", 8, "In the chosen time. The class says why they were not retried any more.",
        (Query(f"{_increase('poison_pills_total', '$__range', 'queue', 'classification')} > 0"),),
        alert="UnpoisonDeadLettersGrowing", columns=_CLASSES,
    ),
    Panel(
        "Dead letters by queue", "timeseries", 16, "How many wait. It falls when they are replayed, discarded or purged.",
        (Query(_DEPTH, "{{queue}}"),), alert="UnpoisonManyDeadLetters",
    ),
)  # fmt: skip

SINCE_WHEN = (
    Panel(
        "First dead letter in this time", "stat", 6, "When the trouble began, if the chosen time is long enough.",
        (Query(f"1000 * min(min_over_time({_MOMENTS}))"),), "dateTimeFromNow", alert="UnpoisonDeadLettersGrowing",
    ),
    Panel(
        "Latest dead letter", "stat", 6, "Whether it goes on.",
        (Query(f"1000 * max(max_over_time({_MOMENTS}))"),), "dateTimeFromNow", alert="UnpoisonDeadLettersGrowing",
    ),
    Panel(
        "Arrivals by class", "bars", 12, "New dead letters over time.",
        (Query(_increase("poison_pills_total", "$__rate_interval", "classification"), "{{classification}}"),),
        alert="UnpoisonDeadLettersGrowing",
    ),
    Panel(
        "Oldest waiting message", "timeseries", 12, "For how long the one that waits longest has been ready.",
        (Query(_top("unpoison_source_oldest_seconds", "queue"), "{{queue}}"),), "s", "UnpoisonOldMessages",
    ),
    Panel(
        "Retention used", "timeseries", 12, "At 100 % the broker deletes what waits. Brokers that delete nothing have no line.",
        (Query(_top("unpoison_retention_used_ratio", "queue"), "{{queue}}"),), "percentunit", "UnpoisonRetentionHalfUsed",
    ),
)  # fmt: skip

HOW_BAD = (
    Panel(
        "Share that became dead letters", "stat", 4, "Of the messages that ended in the chosen time.",
        (Query(f"{_NEW} / clamp_min({_DONE} + {_NEW}, 1)"),), "percentunit", "UnpoisonPermanentErrors",
        steps=((0, "green"), (0.01, "orange"), (0.1, "red")),
    ),
    Panel(
        "Messages a second", "timeseries", 10, "What becomes of messages.",
        (
            Query(_rate("unpoison_messages_handled_total"), "handled"),
            Query(_rate("unpoison_messages_discarded_total"), "discarded"),
            Query(_rate("message_retries_total"), "retried"),
            Query(_rate("poison_pills_total"), "dead"),
        ),
        "cps",
    ),
    Panel(
        "Failures by class", "timeseries", 10, "Starts that failed, whether they are retried or not.",
        (Query(_rate("unpoison_failures_total", "classification"), "{{classification}}"),), "cps", "UnpoisonPermanentErrors",
    ),
    Panel(
        "Waiting at the broker", "timeseries", 12, "Ready to start, delayed until later, or running now.",
        (
            Query(_top("unpoison_source_depth", "queue", "state"), "{{queue}} {{state}}"),
            Query(f"sum by (queue) (unpoison_messages_in_flight{CHOSEN})", "{{queue}} in hand"),
        ),
        alert="UnpoisonOldMessages",
    ),
    Panel(
        "Kafka: messages behind", "timeseries", 6, "Between the group's position and the end.",
        (Query(_top("unpoison_consumer_lag", "queue"), "{{queue}}"),), alert="UnpoisonOldMessages",
    ),
    Panel(
        "How long handlers run", "timeseries", 6, "Half of them, and 99 of 100, take no longer.",
        tuple(
            Query(f"histogram_quantile({part}, {_BUCKETS})", f"{{{{queue}}}} {name}")
            for part, name in ((0.5, "half"), (0.99, "99 %"))
        ),
        "s",
    ),
)  # fmt: skip

BEING_DONE = (
    Panel(
        "Paused", "state-timeline", 12, "Nothing but probes starts while a source is paused.",
        (Query(_top("unpoison_source_paused", "queue", "reason"), "{{queue}}: {{reason}}"),),
        alert="UnpoisonSourcePaused", words={0: ("runs", "green"), 1: ("paused", "red")},
    ),
    Panel(
        "Dependencies", "state-timeline", 12, "What an outage was found of, and how it stands.",
        (Query(_top("unpoison_breaker_state", "queue", "dependency"), "{{queue}}: {{dependency}}"),),
        alert="UnpoisonBreakerOpen", words={0: ("up", "green"), 1: ("being tried", "orange"), 2: ("down", "red")},
    ),
    Panel(
        "Retries a second", "timeseries", 8, "Put off: the budget was used up, and they wait.",
        (
            Query(_rate("message_retries_total", "queue"), "{{queue}}"),
            Query(_rate("unpoison_retries_put_off_total", "queue"), "{{queue}} put off"),
        ),
        "cps", "UnpoisonRetryBudgetUsedUp",
    ),
    Panel(
        "Retry budget left", "timeseries", 8, "Of the consumer that has least of it.",
        (Query(f"min by (queue) (unpoison_retry_budget_left_ratio{CHOSEN})", "{{queue}}"),), "percentunit",
        "UnpoisonRetryBudgetUsedUp",
    ),
    Panel(
        "Workers that ended", "bars", 8, "Not by themselves. Recovered: messages that came back from those who died with them.",
        (
            Query(_increase("unpoison_worker_ends_total", "$__rate_interval", "queue", "kind"), "{{queue}} {{kind}}"),
            Query(_increase("unpoison_messages_recovered_total", "$__rate_interval", "queue"), "{{queue}} recovered"),
        ),
        alert="UnpoisonWorkersCrashing",
    ),
    Panel(
        "Consumers running", "stat", 4, "Processes of the chosen queues.",
        (Query(f"sum(unpoison_consumer_running{CHOSEN})"),), alert="UnpoisonNoConsumer", steps=_RED_THEN_GREEN,
    ),
    Panel(
        "DLQ", "stat", 4, "Whether dead letters can be stored.", (Query(f"min(unpoison_dlq_writable{CHOSEN})"),),
        alert="UnpoisonDLQNotWritable", words={0: ("not writable", "red"), 1: ("writable", "green")},
    ),
    Panel(
        "Store", "stat", 4, "Whether every consumer reaches it. No data: there is none.",
        (Query('min(unpoison_store_up{job=~"$job"})'),),
        alert="UnpoisonStoreAway", words={0: ("away", "red"), 1: ("answers", "green")},
    ),
    Panel(
        "Throttled", "state-timeline", 6, "A dependency has asked for fewer calls.",
        (Query(_top("unpoison_throttled", "queue"), "{{queue}}"),), words={0: ("no", "green"), 1: ("throttled", "orange")},
    ),
    Panel(
        "Versions", "table", 6, "How many consumers run which version of your code, and of unpoison.",
        (Query('count by (code_version, version) (unpoison_info{job=~"$job"})'),),
        columns={"code_version": "Your code", "version": "unpoison", "Value": "Consumers"},
    ),
)  # fmt: skip

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("What is poisoned", POISONED),
    ("Since when", SINCE_WHEN),
    ("How bad it is", HOW_BAD),
    ("What is being done about it", BEING_DONE),
)
