"""How are the queues of a source made, by us or by an administrator?"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from unpoison.brokers.sqs.names import FIFO, Names
from unpoison.brokers.sqs.url import Address
from unpoison.port.broker_url import masked

DAY = 86_400
RETENTION = 14 * DAY
"""As long as SQS keeps anything. It deletes without a word what is older."""

STARTS_RETENTION = DAY // 6
MOST_RECEIVES = 1_000
"""After so many receives SQS itself moves a message to the DLQ: a last net for when nothing of unpoison runs. It counts what a
killed neighbour held too, so it must be far above every limit of ours."""

REDRIVEN = ("work", "suspects")
"""The kinds of queue that have this net."""

OF_OTHERS = ("Policy", "KmsMasterKeyId", "RedriveAllowPolicy")
"""Attributes of a queue that we never set: who may use it, and with which key."""


def attributes(names: Names, kind: str, address: Address, redrive_policy: str) -> dict[str, str]:
    """The attributes that a queue is made with."""
    is_fifo = str(getattr(names, kind)).endswith(FIFO)
    return {
        "MessageRetentionPeriod": str(STARTS_RETENTION if kind == "starts" else RETENTION),
        "VisibilityTimeout": str(address.visibility),
        **({"FifoQueue": "true"} if is_fifo else {}),
        **({"RedrivePolicy": redrive_policy} if kind in REDRIVEN else {}),
    }


def redrive(dlq_arn: str) -> str:
    """The redrive policy of a queue whose last net is this DLQ."""
    return json.dumps({"deadLetterTargetArn": dlq_arn, "maxReceiveCount": MOST_RECEIVES})


def is_as_made(work: Mapping[str, str], dlq_arn: str) -> bool:
    """Whether the queue of a source has no settings but those that we give it."""
    try:
        policy = json.loads(work.get("RedrivePolicy") or "{}")
        is_ours = str(policy["deadLetterTargetArn"]) == dlq_arn and int(policy["maxReceiveCount"]) == MOST_RECEIVES
    except (ValueError, TypeError, KeyError):
        return False
    return is_ours and not any(work.get(name) for name in OF_OTHERS)


def commands(names: Names, kinds: Sequence[str], address: Address, known_arn: str | None) -> Iterator[str]:
    """Lines of a shell script that makes these queues. `known_arn` is that of a queue of the same account, if there is one."""
    there = "".join(f" {option}" for option in _options(address))
    dlq_arn = "" if known_arn is None else known_arn.rpartition(":")[0] + f":{names.dlq}"
    for kind in sorted(kinds, key=lambda kind: kind != "dlq"):  # the others name it
        name = getattr(names, kind)
        told = shlex.quote(json.dumps(attributes(names, kind, address, redrive(dlq_arn or ARN))))
        yield f"aws sqs create-queue --queue-name {name} --attributes {told.replace(ARN, ARN_OF_SHELL)}{there}"
        if kind == "dlq" and not dlq_arn and set(REDRIVEN) & set(kinds):
            url = f'"$(aws sqs get-queue-url --queue-name {name} --query QueueUrl --output text{there})"'
            told = "--attribute-names QueueArn --query Attributes.QueueArn --output text"
            yield f"DLQ_ARN=$(aws sqs get-queue-attributes --queue-url {url} {told}{there})"


ARN, ARN_OF_SHELL = "ARN-OF-THE-DLQ", "'\"$DLQ_ARN\"'"


def _options(address: Address) -> Iterator[str]:
    """What the command line of AWS needs to find the same place."""
    endpoint = None if address.endpoint is None else masked(address.endpoint)
    named = {"--region": address.region, "--endpoint-url": endpoint, "--profile": address.profile}
    for option, value in named.items():
        if value is not None:
            yield f"{option} {shlex.quote(value)}"
