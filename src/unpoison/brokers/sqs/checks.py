"""What about an existing queue loses messages, or is not as we would have made it? Pure: attributes in, findings out."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from unpoison.port.broker import Finding

DAY = 86_400
LONGEST_RETENTION = 14 * DAY
SHORT_RETENTION = DAY
FEW_RECEIVES = 50
"""Ten times the limit that a consumer has by default."""

LONGEST_HELD = 43_200
LIMIT = 1_048_576
NAMES = (
    "no-redrive",
    "redrive-too-low",
    "redrive-elsewhere",
    "short-retention",
    "letters-expire-early",
    "letters-redriven",
    "letters-expire",
    "queue-delays",
    "small-messages",
    "retries-overtake",
    "handler-over-twelve-hours",
)

Attributes = Mapping[str, str]


def work_queue(name: str, work: Attributes, dlq: Attributes) -> list[Finding]:
    """About a source that was there before."""
    return [*of_redrive(name, work, dlq), *_of_retention(name, work), *_of_limits(name, work), *of_order(name)]


def of_order(name: str) -> list[Finding]:
    """Said of each FIFO queue, old or new."""
    if not name.endswith(".fifo"):
        return []
    return [
        Finding(
            "retries-overtake",
            f"Queue {name!r} is a FIFO queue: messages of one group are handled in order, except that those behind a message "
            f"which fails do not wait for it. Its retry is sent again, to the end of its group.",
            "If a later message must never be handled before an earlier one, have handlers check that, by a version say.",
        )
    ]


def of_redrive(name: str, work: Attributes, dlq: Attributes) -> list[Finding]:
    policy = redrive(work)
    wanted = json.dumps({"RedrivePolicy": json.dumps({"deadLetterTargetArn": dlq.get("QueueArn", ""), "maxReceiveCount": 1000})})
    fix = _set(name, f"'{wanted}'")
    if not policy:
        return [
            Finding(
                "no-redrive",
                f"Queue {name!r} has no redrive policy: while nothing of unpoison runs, a message that another program cannot "
                f"handle comes back until SQS deletes it.",
                fix,
            )
        ]
    found: list[Finding] = []
    most, target = _number(policy.get("maxReceiveCount")), str(policy.get("deadLetterTargetArn", ""))
    if most is not None and most < FEW_RECEIVES:
        found.append(
            Finding(
                "redrive-too-low",
                f"Queue {name!r} gives a message up after {most} receives (maxReceiveCount). SQS counts every receive, also of "
                f"messages that only stood beside one that killed its consumer: innocent ones become dead letters, without a "
                f"word about why.",
                fix,
                loses=True,
            )
        )
    if target and dlq.get("QueueArn") and target != dlq["QueueArn"]:
        found.append(
            Finding(
                "redrive-elsewhere",
                f"What SQS itself gives up of queue {name!r} goes to {target}, where unpoison dlq does not look.",
                fix,
            )
        )
    return found


def redrive(attributes: Attributes) -> dict[str, Any]:
    with suppress(ValueError):
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return policy if isinstance(policy, dict) else {}
    return {}


def _number(value: object) -> int | None:
    with suppress(TypeError, ValueError):
        return int(str(value))
    return None


def _of_retention(name: str, work: Attributes) -> list[Finding]:
    kept = int(work.get("MessageRetentionPeriod", LONGEST_RETENTION))
    if kept >= SHORT_RETENTION:
        return []
    return [
        Finding(
            "short-retention",
            f"Queue {name!r} deletes messages that are {kept:,} s old, handled or not (MessageRetentionPeriod): a consumer that "
            f"stands still for so long loses them.",
            _set(name, f"MessageRetentionPeriod={LONGEST_RETENTION}"),
            loses=True,
        )
    ]


def _of_limits(name: str, work: Attributes) -> list[Finding]:
    found: list[Finding] = []
    if int(work.get("DelaySeconds", 0)) > 0:
        found.append(
            Finding(
                "queue-delays",
                f"Queue {name!r} delays every message by {work['DelaySeconds']} s (DelaySeconds), also each retry that is to "
                f"start at once and what a planned stop hands back.",
                _set(name, "DelaySeconds=0"),
            )
        )
    most = int(work.get("MaximumMessageSize", LIMIT))
    if most < 64 * 1024:
        found.append(
            Finding(
                "small-messages",
                f"Queue {name!r} takes messages of {most:,} bytes at most (MaximumMessageSize), counters and history included: a "
                f"retry of one that just fits may not fit.",
                _set(name, f"MaximumMessageSize={LIMIT}"),
            )
        )
    return found


def letters_queue(name: str, dlq: Attributes, work: Attributes) -> list[Finding]:
    """About a DLQ that was there before."""
    found: list[Finding] = []
    kept, source_kept = (int(each.get("MessageRetentionPeriod", LONGEST_RETENTION)) for each in (dlq, work))
    if kept < source_kept:
        found.append(
            Finding(
                "letters-expire-early",
                f"Queue {name!r} keeps messages for {kept:,} s, and its source for {source_kept:,} s. SQS counts from when a "
                f"message was first sent: one that SQS itself moves there late is deleted at once.",
                _set(name, f"MessageRetentionPeriod={LONGEST_RETENTION}"),
                loses=True,
            )
        )
    elif kept < LONGEST_RETENTION:
        found.append(
            Finding(
                "letters-expire",
                f"Queue {name!r} deletes dead letters after {kept / DAY:g} days, and SQS could keep them for 14.",
                _set(name, f"MessageRetentionPeriod={LONGEST_RETENTION}"),
            )
        )
    found += _of_letter_size(name, dlq, work)
    if redrive(dlq):
        found.append(
            Finding(
                "letters-redriven",
                f"Queue {name!r} has a redrive policy of its own: each look at a dead letter is a receive, and after "
                f"{redrive(dlq).get('maxReceiveCount')} of them SQS takes it away from there.",
                _set(name, "RedrivePolicy="),
                loses=True,
            )
        )
    return found


def _of_letter_size(name: str, dlq: Attributes, work: Attributes) -> list[Finding]:
    most, source_most = (int(each.get("MaximumMessageSize", LIMIT)) for each in (dlq, work))
    if most >= source_most:
        return []
    return [
        Finding(
            "small-messages",
            f"Queue {name!r} takes messages of {most:,} bytes at most (MaximumMessageSize), and its source {source_most:,}: one "
            f"that is larger can be no dead letter, and makes its source stand still.",
            _set(name, f"MaximumMessageSize={LIMIT}"),
        )
    ]


def handler_time(longest: float | None) -> list[Finding]:
    """About handlers that may run for longer than SQS lets anybody hold a message."""
    if longest is None or longest < LONGEST_HELD:
        return []
    how = "no time limit" if longest == float("inf") else f"a time limit of {longest:,.0f} s"
    return [
        Finding(
            "handler-over-twelve-hours",
            f"A handler has {how}, and SQS lets nobody hold a message for more than twelve hours (43,200 s): one that runs "
            f"longer is ended then, and its message starts again, each time.",
            "Give it a time limit below that, as in timeout=36000, or have it note in its message how far it came.",
            loses=longest != float("inf"),
        )
    ]


def _set(name: str, attributes: str) -> str:
    where = f'"$(aws sqs get-queue-url --queue-name {name} --query QueueUrl --output text)"'
    return f"aws sqs set-queue-attributes --queue-url {where} --attributes {attributes}"
