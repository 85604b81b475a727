"""What can be wrong with a queue that was there before. Pure: attributes in, findings out."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from unpoison.port.broker import Finding
from unpoison.port.findings import Check, loss, names_of

DAY = 86_400
LONGEST_RETENTION = 14 * DAY
SHORT_RETENTION = DAY
FEW_RECEIVES = 50
"""Ten times the limit that a consumer has by default."""

LONGEST_HELD = 43_200
LIMIT = 1_048_576

Attributes = Mapping[str, str]


class Queue:
    """What the checks need to know about a queue; `other` is its DLQ, or of a DLQ its source."""

    def __init__(self, name: str, attributes: Attributes, other: Attributes) -> None:
        self.name, self.policy, self.dlq_arn = name, redrive(attributes), other.get("QueueArn", "")
        self.target = str(self.policy.get("deadLetterTargetArn", ""))
        self.receives = self.policy.get("maxReceiveCount")
        self.delay = int(attributes.get("DelaySeconds", 0))
        self.retention, self.others_retention = (
            int(each.get("MessageRetentionPeriod", LONGEST_RETENTION)) for each in (attributes, other)
        )
        self.days = self.retention / DAY
        self.limit, self.others_limit = (int(each.get("MaximumMessageSize", LIMIT)) for each in (attributes, other))
        where = f'"$(aws sqs get-queue-url --queue-name {name} --query QueueUrl --output text)"'
        self.set = f"aws sqs set-queue-attributes --queue-url {where} --attributes"
        """How the command begins that sets attributes."""
        policy = json.dumps({"deadLetterTargetArn": self.dlq_arn, "maxReceiveCount": 1000})
        self.set_redrive = f"{self.set} '{json.dumps({'RedrivePolicy': policy})}'"

    def gives_up_early(self) -> bool:
        with suppress(TypeError, ValueError):
            return int(str(self.receives)) < FEW_RECEIVES
        return False


def redrive(attributes: Attributes) -> dict[str, Any]:
    with suppress(ValueError):
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return policy if isinstance(policy, dict) else {}
    return {}


OF_REDRIVE = (
    Check(
        "no-redrive",
        lambda queue: not queue.policy,
        "Queue {of.name!r} has no redrive policy: while nothing of unpoison runs, a message that another program cannot handle "
        "comes back until SQS deletes it.",
        "{of.set_redrive}",
    ),
    loss(
        "redrive-too-low",
        Queue.gives_up_early,
        "Queue {of.name!r} gives a message up after {of.receives} receives (maxReceiveCount). SQS counts every receive, "
        "also of messages that only stood beside one that killed its consumer: innocent ones become dead letters, without a "
        "word about why.",
        "{of.set_redrive}",
    ),
    Check(
        "redrive-elsewhere",
        lambda queue: bool(queue.target and queue.dlq_arn and queue.target != queue.dlq_arn),
        "What SQS itself gives up of queue {of.name!r} goes to {of.target}, where unpoison dlq does not look.",
        "{of.set_redrive}",
    ),
)
RETRIES_OVERTAKE = Check(  # said of each FIFO queue, old or new
    "retries-overtake",
    lambda queue: queue.name.endswith(".fifo"),
    "Queue {of.name!r} is a FIFO queue: messages of one group are handled in order, except that those behind a message which "
    "fails do not wait for it. Its retry is sent again, to the end of its group.",
    "If a later message must never be handled before an earlier one, have handlers check that, by a version say.",
)
OF_WORK_QUEUES = (
    *OF_REDRIVE,
    loss(
        "short-retention",
        lambda queue: queue.retention < SHORT_RETENTION,
        "Queue {of.name!r} deletes messages that are {of.retention:,} s old, handled or not (MessageRetentionPeriod): a "
        "consumer that is paused for so long loses them.",
        f"{{of.set}} MessageRetentionPeriod={LONGEST_RETENTION}",
    ),
    Check(
        "queue-delays",
        lambda queue: queue.delay > 0,
        "Queue {of.name!r} delays every message by {of.delay} s (DelaySeconds), also each retry that is to start at once and "
        "what a planned stop hands back.",
        "{of.set} DelaySeconds=0",
    ),
    Check(
        "small-messages",
        lambda queue: queue.limit < 64 * 1024,
        "Queue {of.name!r} takes messages of {of.limit:,} bytes at most (MaximumMessageSize), counters and history included: a "
        "retry of one that just fits may not fit.",
        f"{{of.set}} MaximumMessageSize={LIMIT}",
    ),
    RETRIES_OVERTAKE,
)
OF_LETTER_QUEUES = (
    loss(
        "letters-expire-early",
        lambda queue: queue.retention < queue.others_retention,
        "Queue {of.name!r} keeps messages for {of.retention:,} s, and its source for {of.others_retention:,} s. SQS counts "
        "from when a message was first sent: one that SQS itself moves there late is deleted at once.",
        f"{{of.set}} MessageRetentionPeriod={LONGEST_RETENTION}",
    ),
    Check(
        "letters-expire",
        lambda queue: queue.others_retention <= queue.retention < LONGEST_RETENTION,
        "Queue {of.name!r} deletes dead letters after {of.days:g} days, and SQS could keep them for 14.",
        f"{{of.set}} MessageRetentionPeriod={LONGEST_RETENTION}",
    ),
    Check(
        "small-messages",
        lambda queue: queue.limit < queue.others_limit,
        "Queue {of.name!r} takes messages of {of.limit:,} bytes at most (MaximumMessageSize), and its source "
        "{of.others_limit:,}: one that is larger can be no dead letter, and pauses its source.",
        f"{{of.set}} MaximumMessageSize={LIMIT}",
    ),
    loss(
        "letters-redriven",
        lambda queue: bool(queue.policy),
        "Queue {of.name!r} has a redrive policy of its own: each look at a dead letter is a receive, and after "
        "{of.receives} of them SQS takes it away from there.",
        "{of.set} RedrivePolicy=",
    ),
)
NAMES = (*names_of(OF_WORK_QUEUES, OF_LETTER_QUEUES), "handler-over-twelve-hours")


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
