"""What does unpoison log? Every log line is one of these events; docs/logs.md shows the same table.

Names and fields do not change: alerts and searches rely on them. `fields` makes the `extra` of a log call, and
tests/unit/test_events.py goes over all log calls.
"""

import logging
from typing import Any, NamedTuple

_DEBUG, _INFO, _WARNING, _ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class LogEvent(NamedTuple):
    """One kind of log line. All its lines have the fields in `always`, besides `event`; some have those in `sometimes`."""

    levels: tuple[int, ...]
    always: tuple[str, ...]
    sometimes: tuple[str, ...]
    meaning: str


_JUDGED = ("source", "message_id", "attempt", "classification", "rule", "error_type", "fingerprint")
_OUTAGE = ("dependency", "messages", "seconds", "samples")
_PAUSED = (*_OUTAGE, "dead", "ended", "within", "interval", "by", "why", "paused_at")

EVENTS: dict[str, LogEvent] = {
    # Messages
    "retry": LogEvent((_WARNING,), (*_JUDGED, "delay", "charged"), ("app",), "an attempt has failed; the message is tried again"),
    "dead": LogEvent((_ERROR,), (*_JUDGED, "letter_id"), ("app",), "a message has become a dead letter"),
    "discard": LogEvent((_INFO,), _JUDGED, ("app",), "a handler has dropped its message on purpose"),
    "release": LogEvent((_INFO,), ("source", "count"), ("app",), "messages were handed back at a stop, uncharged"),
    "takeover": LogEvent(
        (_WARNING,), ("source", "count", "from_consumer", "since"), (), "messages came back from a consumer that vanished"
    ),
    "moved-back": LogEvent((_INFO,), ("source", "count"), (), "another tool has moved dead letters back to the source"),
    "trimmed": LogEvent((_ERROR,), ("source", "count"), (), "Redis: messages are lost, since their stream was trimmed"),
    "foreign-attempts": LogEvent(
        (_WARNING,), ("source", "message_id"), (), "a message has a counter of our name that another program wrote; once a source"
    ),
    "tombstones-skipped": LogEvent((_INFO,), ("source",), ("app",), "tombstones are done without the handler; told once"),
    # Sources
    "start": LogEvent((_INFO,), ("source",), ("app",), "a consumer has started"),
    "finding": LogEvent((_WARNING, _ERROR), ("source", "finding"), (), "a setting of the broker, as `unpoison doctor` tells it"),
    "not-checked": LogEvent((_INFO,), ("source",), (), "the broker does not say whether it has settings that lose messages"),
    "pause": LogEvent(
        (_ERROR,),
        ("source", "reason"),
        ("app", *_PAUSED),
        "nothing starts; `reason`: `operator`, `admission` (too many dead letters), `outage`, or `broker` (it cannot be used)",
    ),
    "resume": LogEvent(
        (_INFO, _WARNING),
        ("source", "reason"),
        ("app", "probation", *_PAUSED),
        "a pause is over; `reason`, and the fields of its pause",
    ),
    "outage": LogEvent((_ERROR,), ("source", "reason", *_OUTAGE), ("app",), "a dependency is down; what fails on it waits"),
    "outage-lasts": LogEvent((_ERROR,), ("source", "reason", *_OUTAGE), ("app",), "it is still down; every ten minutes"),
    "outage-over": LogEvent((_WARNING,), ("source", "dependency", "seconds", "reason"), ("app",), "what waits for it is started"),
    "throttled": LogEvent((_WARNING,), ("source", *_OUTAGE, "wait"), ("app",), "a dependency asks to slow down; the source does"),
    "budget": LogEvent((_WARNING,), ("source", "count", "share"), ("app",), "retries beyond the budget are put off"),
    "retention": LogEvent((_ERROR,), ("source", "waited", "limit", "left"), ("app",), "the broker is about to delete what waits"),
    "waiting": LogEvent(
        (_INFO,),
        ("source", "running", "ready", "delayed", "held", "due", "holders"),
        ("app",),
        "why a run with `--until-empty` goes on",
    ),
    "topic-made": LogEvent((_WARNING,), ("source", "topic"), (), "Kafka: a topic was deleted during the run, and created again"),
    "topic-made-again": LogEvent((_WARNING,), ("source",), (), "Kafka: a source was deleted and made again; read from its start"),
    "group-destroyed": LogEvent((_ERROR,), ("source",), (), "Redis: the consumer group was destroyed, and is created again"),
    "source-created": LogEvent((_WARNING,), ("source",), (), "a publish has made a source that its app does not consume"),
    # Consumers
    "stop": LogEvent((_INFO,), ("signal",), (), "a signal has asked the run to end"),
    "ownership-lost": LogEvent((_WARNING,), ("source",), ("app",), "another consumer has taken over what this one held"),
    "left-running": LogEvent((_WARNING,), ("source", "count"), ("app",), "threads still run after the grace period"),
    "broken": LogEvent((_ERROR,), ("source", "message_ids"), ("app",), "a consumer has ended by a fault of unpoison's own"),
    "keeper-error": LogEvent((_ERROR,), (), (), "a fault of unpoison's own in the thread that holds messages; told once"),
    "companion-ended": LogEvent((_ERROR,), ("app", "status", "wait"), (), "a consumer process beside a web application ended"),
    "observer-failed": LogEvent((_ERROR,), ("observer",), (), "metrics or notifications are incomplete; once for each cause"),
    "output": LogEvent((_WARNING,), (), (), "what handlers print cannot be written, and is dropped for now"),
    # Workers
    "workers-do-not-start": LogEvent((_ERROR,), ("source",), (), "no worker can start: the import or on_worker_start fails"),
    "workers-start": LogEvent((_WARNING,), ("source",), (), "workers start again"),
    "worker-damaged": LogEvent(
        (_WARNING, _DEBUG), ("source", "pid", "candidates"), (), "a message has changed its worker; one of these"
    ),
    "worker-habit": LogEvent((_WARNING,), ("source",), (), "handlers change their workers with every message; left so"),
    "worker-replaced": LogEvent((_WARNING,), ("source", "pid"), (), "many messages in a row have failed in a worker"),
    "worker-not-believed": LogEvent((_WARNING,), ("source", "pid"), (), "a worker was killed: what it reports cannot be true"),
    "hook-failed": LogEvent(
        (_ERROR,),
        ("hook",),
        ("source", "message_id", "hook_traceback"),
        "a hook raised, took too long or ended its process; no verdict changes",
    ),
    # Store
    "store-away": LogEvent((_WARNING,), ("source",), (), "the store cannot be used; the consumer goes on by itself"),
    "store-back": LogEvent((_WARNING,), ("source",), (), "the store can be used again"),
    "store-fault": LogEvent((_ERROR,), ("source",), (), "a fault of unpoison's own in its store"),
    "not-collected": LogEvent(
        (_WARNING, _ERROR), ("source",), ("letter_id",), "dead letters, or the one that is named, stay in the DLQ of the broker"
    ),
    "listen": LogEvent((_INFO,), ("host", "port"), (), "where `/metrics`, `/healthz` and `/readyz` are answered"),
    "http-failed": LogEvent((_ERROR,), (), (), "a fault of unpoison's own in such an answer; once for each path"),
    "heartbeat-failed": LogEvent((_ERROR,), (), (), "the heartbeat file cannot be written"),
    "heartbeat-resumed": LogEvent((_WARNING,), (), (), "the heartbeat file is written again"),
    "systemd-failed": LogEvent((_WARNING,), (), (), "systemd could not be told; once"),
    "hung": LogEvent((_ERROR,), ("source",), (), "the loop of a consumer does not turn; the line has its stack"),
    "turns-again": LogEvent((_WARNING,), ("source",), (), "that loop turns again"),
    "monitoring-fault": LogEvent((_ERROR,), (), (), "a fault of unpoison's own where health is told"),
    "tracing-failed": LogEvent((_ERROR,), ("where",), (), "OpenTelemetry failed, so spans are missing; once for each place"),
    "spans-dropped": LogEvent((_WARNING,), (), (), "messages fail faster than spans can be made of it; told once"),
    "depth-fault": LogEvent((_ERROR,), (), (), "a fault of unpoison's own where metrics read depths; once for each cause"),
    "notified": LogEvent((_DEBUG,), ("target",), (), "a notice was sent"),
    "notify-failed": LogEvent((_ERROR,), ("target",), (), "a notice could not be sent, and is given up; told once"),
    "notify-back": LogEvent((_WARNING,), ("target",), (), "notices are sent again"),
    "notify-left": LogEvent((_WARNING,), (), (), "the last notices of a run could not be sent in time"),
    "notify-store-away": LogEvent((_WARNING,), (), (), "each process tells what it finds, since the store cannot be asked"),
    "notify-fault": LogEvent((_ERROR,), (), (), "a fault of unpoison's own in a notice; told once"),
    "expired": LogEvent((_INFO,), ("count", "where"), (), "old letters were deleted from the store, as `expire` says"),
    "collected-again": LogEvent((_INFO,), ("source",), (), "dead letters are collected again"),
    "collector-fault": LogEvent((_ERROR,), ("source",), (), "a fault of unpoison's own in the collector"),
}

MEANINGS: dict[str, str] = {
    "event": "what has happened",
    "source": "of which source it is told",
    "app": "the app as `module:app`: two apps may have a source of the same name",
    "message_id": "the id of the message",
    "message_ids": "the ids of the messages that the consumer held, 20 at most",
    "attempt": "the attempt that failed: 1 for the first",
    "classification": "what kind of failure it is, as in [how a message lives](life.md)",
    "rule": "the rule that decided, in words",
    "error_type": "the class of the exception",
    "fingerprint": "what failures of one cause have in common",
    "delay": "seconds until the next attempt",
    "charged": "whether this attempt counts towards `max_attempts`",
    "letter_id": "the id of the dead letter, for `unpoison dlq show`; null if the broker does not say it",
    "count": "how many messages",
    "from_consumer": "the consumer that vanished; null if the broker does not say it",
    "since": "when that consumer started, if that is known",
    "reason": "of a pause, or of its end",
    "dependency": "what is down or throttles",
    "messages": "how many different messages have failed on it",
    "seconds": "how long it has lasted",
    "samples": "a few errors of these messages",
    "dead": "how many of them were to become dead letters",
    "ended": "how many messages have ended",
    "within": "in so many seconds",
    "interval": "seconds between two probes of one consumer",
    "by": "who has paused the source, or who ends the pause",
    "why": "what that person has said",
    "paused_at": "since when, in seconds since 1970",
    "probation": "whether dead letters are not admitted yet",
    "wait": "seconds for which nothing starts",
    "share": "the share of the traffic that retries may have",
    "waited": "seconds for which messages have waited",
    "limit": "seconds after which the broker deletes them",
    "left": "seconds until it does",
    "running": "how many messages run here",
    "ready": "how many are ready to be started",
    "delayed": "how many wait for a later time",
    "held": "how many are held by consumers",
    "due": "when the next of them is due",
    "holders": "which consumers hold them",
    "finding": "its name, for `accept=`",
    "topic": "which topic",
    "signal": "its name",
    "status": "the exit status",
    "observer": "which one, and what it was told",
    "pid": "the process id of the worker",
    "candidates": "the ids of the messages that may have done it",
    "hook": "its name, as `on_failure`",
    "target": "to whom notices are sent, without passwords",
    "where": "which letters, as a filter; of a fault the function",
    "host": "the address that is listened on",
    "port": "the port",
    "hook_traceback": "of what the hook raised",
}
"""What each field is."""


def fields(event: str, **values: Any) -> dict[str, Any]:
    """The `extra` of a log line: what JSON lines show, and what filters and alerts match."""
    return {"event": event, **values}
