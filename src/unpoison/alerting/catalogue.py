"""Which alerts are there, when does each of them fire, and what must be done first?

Written for Prometheus 2.26 and newer. The sections of docs/runbook.md have the same names.
"""

from collections.abc import Iterator

from unpoison.alerting.alert import PAGE, TICKET, Alert, Record, Thresholds
from unpoison.alerting.promql import gauge, increase
from unpoison.model.wording import counted

ENDED = "queue:unpoison_messages_ended:increase15m"
"""How many messages have ended in 15 minutes, by outcome; those that died also by classification."""
INCURABLE = 'outcome="dead", classification=~"permanent|invalid|bug"'
"""Dead letters that no retry could have prevented."""
LEAST_INCURABLE = 5
"""Below that a share means nothing: one of three messages is not 33 %."""
MANY_ENDS = 15
"""As many as three poison messages make with the usual five attempts: these are dealt with, and nobody need hear of them."""

_MANY = "{{ $value | humanize }}"
_SHARE = "{{ $value | humanizePercentage }}"
_SINCE = "{{ $value | humanizeDuration }}"
_QUEUE = "{{ $labels.queue }}"


def records(chosen: Thresholds) -> tuple[Record, ...]:
    """By outcome, and not as one sum: a counter that a process does not have would make the whole sum disappear."""
    counters = {"handled": "unpoison_messages_handled_total", "discarded": "unpoison_messages_discarded_total"}
    plain = [Record(ENDED, (("outcome", name),), increase(metric, "15m", chosen.by)) for name, metric in counters.items()]
    dead = increase("poison_pills_total", "15m", (*chosen.by, "classification"))
    return (*plain, Record(ENDED, (("outcome", "dead"),), dead))


def alerts(chosen: Thresholds) -> tuple[Alert, ...]:
    """All of them, those about dead letters first."""
    return (
        *_dead_letters(chosen),
        *_pauses(chosen),
        *_waiting(chosen),
        *_retries(chosen),
        *_processes(chosen),
        *_losing(chosen),
    )


def _dead_letters(chosen: Thresholds) -> Iterator[Alert]:
    by, depth = chosen.by, gauge("max", "dlq_depth", chosen.by)
    yield Alert(
        "UnpoisonDeadLettersGrowing",
        TICKET,
        "5m",
        f"{depth}\n> min by ({', '.join(by)}) (min_over_time(dlq_depth[30m]))",
        f"{_QUEUE}: new dead letters, {_MANY} wait now",
        "Messages became dead letters in the last 30 minutes. They are kept, and the other messages go on.",
        "see what failed: unpoison dlq groups --source " + _QUEUE,
    )
    yield Alert(
        "UnpoisonManyDeadLetters",
        PAGE,
        "5m",
        f"{depth} > {chosen.depth}",
        f"{_QUEUE}: {_MANY} dead letters",
        f"More than {counted(chosen.depth, 'dead letter')} wait. What these messages were to do is not done.",
        "see whether all failed alike: unpoison dlq groups --source " + _QUEUE,
    )
    yield Alert(
        "UnpoisonAttemptsOverLimit",
        PAGE,
        "0m",
        f"{increase('unpoison_attempts_over_limit_total', '15m', by)} > 0",
        f"{_QUEUE}: messages were started more often than max_attempts",
        "A message runs again although its attempts are used up: a loop that unpoison should have ended.",
        f"stop it: unpoison pause {_QUEUE} --reason 'attempts over the limit'",
    )
    yield Alert(
        "UnpoisonPermanentErrors",
        TICKET,
        "5m",
        _incurable_share(chosen),
        f"{_QUEUE}: {_SHARE} of the messages fail for good",
        f"In the last 15 minutes more than {chosen.share * 100:g} % of the messages, and at least {LEAST_INCURABLE}, failed in a "
        f"way that no retry can cure (permanent, invalid or bug).",
        "see what they have in common, and what was deployed: unpoison dlq groups --source " + _QUEUE,
    )


def _incurable_share(chosen: Thresholds) -> str:
    incurable = f"sum by ({', '.join(chosen.by)}) ({ENDED}{{{INCURABLE}}})"
    share = f"{incurable}\n  / sum by ({', '.join(chosen.by)}) ({ENDED})"
    # The count is asked without the share's value; and where it is not 0, neither is what is divided by.
    return f"{share}\n> {chosen.share:.10g}\nand {incurable} >= {LEAST_INCURABLE}"


def _pauses(chosen: Thresholds) -> Iterator[Alert]:
    by = chosen.by
    yield Alert(
        "UnpoisonSourcePaused",
        PAGE,
        "15m",
        f"{gauge('max', _paused('outage|broker'), (*by, 'reason'))} == 1",
        f"{_QUEUE}: paused for 15 minutes ({{{{ $labels.reason }}}})",
        "Nothing but probes starts: a dependency is down (outage), or the broker cannot be used (broker). Messages wait.",
        "see what is down and since when: unpoison status " + _QUEUE,
    )
    yield Alert(
        "UnpoisonAdmissionPaused",
        PAGE,
        "2m",
        f"{gauge('max', _paused('admission'), by)} == 1",
        f"{_QUEUE}: paused, since too many messages failed for good",
        "So many messages were to become dead letters that the source was paused to keep the rest, as after a bad deploy.",
        "roll back what was deployed. If the messages were at fault: unpoison resume " + _QUEUE,
    )
    yield Alert(
        "UnpoisonPausedByOperator",
        TICKET,
        "4h",
        f"{gauge('max', _paused('operator'), by)} == 1",
        f"{_QUEUE}: paused by a person for more than 4 hours",
        "Somebody has paused the source, and nothing starts until somebody resumes it.",
        "see who and why: unpoison status " + _QUEUE,
    )


def _paused(reasons: str) -> str:
    return f'unpoison_source_paused{{reason=~"{reasons}"}}'


def _waiting(chosen: Thresholds) -> Iterator[Alert]:
    by = chosen.by
    yield Alert(
        "UnpoisonNoConsumer",
        PAGE,
        "5m",
        # What has never run cannot be missed, and what has not run for a day may have been removed.
        f"max by ({', '.join(by)}) (max_over_time(unpoison_consumer_running[1d])) == 1\nunless\n"
        f"{gauge('max', 'unpoison_consumer_running', by)} == 1",
        f"{_QUEUE}: no consumer is running",
        "Consumers of this queue ran within the last day, and none of them runs now or can be scraped. Messages wait.",
        "start them; if they end again, see why in the log of unpoison run",
    )
    yield Alert(
        "UnpoisonOldMessages",
        PAGE,
        "5m",
        f"{gauge('max', 'unpoison_source_oldest_seconds', by)} > {chosen.oldest:.10g}",
        f"{_QUEUE}: a message has been waiting for {_SINCE}",
        "Messages wait longer than they may before they are started.",
        "see whether the source is paused, and whether consumers keep up: unpoison status " + _QUEUE,
    )


def _retries(chosen: Thresholds) -> Iterator[Alert]:
    by = chosen.by
    yield Alert(
        "UnpoisonBreakerOpen",
        TICKET,
        "10m",
        # Between two probes it is open and while one runs it is not; the longest wait between two is 15 s unless set.
        f"max by ({', '.join((*by, 'dependency'))}) (max_over_time(unpoison_breaker_state[5m])) == 2",
        f"{_QUEUE}: {{{{ $labels.dependency }}}} has been down for 10 minutes",
        "Messages that need it wait, uncharged, and are tried again once a probe succeeds. The others go on.",
        "see what is known of the dependency: unpoison status " + _QUEUE,
    )
    yield Alert(
        "UnpoisonRetryBudgetUsedUp",
        TICKET,
        "15m",
        f"sum by ({', '.join(by)}) (rate(unpoison_retries_put_off_total[5m])) > 0",
        f"{_QUEUE}: retries are put off, {{{{ $value | humanize }}}} a second",
        "For 15 minutes more retries came due than the budget allows. They wait, uncharged; first starts are not slowed down.",
        "see in the dashboard, under 'Failures by class', what is retried",
    )


def _processes(chosen: Thresholds) -> Iterator[Alert]:
    by = chosen.by
    yield Alert(
        "UnpoisonWorkersCrashing",
        TICKET,
        "0m",
        f"{increase('unpoison_worker_ends_total', '15m', (*by, 'kind'))} > {MANY_ENDS}",
        f"{_QUEUE}: {{{{ $value | humanize }}}} workers ended in 15 minutes ({{{{ $labels.kind }}}})",
        "Handlers end their processes again and again. Each end costs the time of a new worker; the other messages go on.",
        "see which messages do it: unpoison dlq ls --where 'class:crash or class:timeout'",
    )
    yield Alert(
        "UnpoisonStoreAway",
        TICKET,
        "15m",
        f"{_fleet(chosen, 'min', 'unpoison_store_up')} == 0",
        "The store of unpoison does not answer",
        "Consumers go on without it: pauses and outages are not shared, and dead letters stay at the broker.",
        "see whether the database of the store runs, and whether this host reaches it: unpoison status",
    )
    yield Alert(
        "UnpoisonDepthsUnknown",
        TICKET,
        "5m",
        f"{gauge('max', 'unpoison_consumer_running', by)}\nunless\n{gauge('max', 'dlq_depth', by)}",
        f"{_QUEUE}: nobody knows how many messages and dead letters wait",
        "No consumer could ask the broker, or the store, for 10 minutes. The other alerts see nothing of it.",
        "ask the broker yourself: unpoison status " + _QUEUE,
    )


def _fleet(chosen: Thresholds, way: str, metric: str) -> str:
    """What has no queue. Without labels there is one fleet."""
    return gauge(way, metric, chosen.labels) if chosen.labels else f"{way}(last_over_time({metric}[5m]))"


def _losing(chosen: Thresholds) -> Iterator[Alert]:
    used = gauge("max", "unpoison_retention_used_ratio", chosen.by)
    yield Alert(
        "UnpoisonDLQNotWritable",
        PAGE,
        "5m",
        f"{gauge('min', 'unpoison_dlq_writable', chosen.by)} == 0",
        f"{_QUEUE}: dead letters cannot be stored",
        "What fails for good is kept at the source until it can be stored. Nothing is lost, but it takes the place of others.",
        "give the DLQ room, or the consumer its right to write there. To see which: unpoison doctor",
    )
    yield Alert(
        "UnpoisonRetentionHalfUsed",
        TICKET,
        "5m",
        f"{used} > 0.5",
        f"{_QUEUE}: {_SHARE} of the retention is used up",
        "The broker deletes what waits too long, and the oldest message has waited for more than half of that time.",
        "see why it waits, then have it consumed or raise the retention: unpoison status " + _QUEUE,
    )
    yield Alert(
        "UnpoisonRetentionAlmostUsed",
        PAGE,
        "1m",
        f"{used} > 0.9",
        f"{_QUEUE}: messages are about to be deleted, {_SHARE} of the retention is used up",
        "The broker deletes the oldest message soon, without a dead letter.",
        "raise the retention at the broker, then see why it waits: unpoison status " + _QUEUE,
    )
