"""Which CloudWatch alarms does a source in Amazon SQS need? A CloudFormation template of them.

CloudWatch sees the queues, and none of unpoison's own figures: what only a consumer knows needs Prometheus.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping

from unpoison.alerting.alert import Thresholds, runbook_link
from unpoison.alerting.yaml_text import Value
from unpoison.errors import ConfigError

PERIOD = 300
"""Seconds. SQS reports each minute; a letter that an operator looks at is invisible for less than this."""

_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,75}([A-Za-z0-9_-]{0,5}|\.fifo)", re.ASCII)


def template(queues: Mapping[str, str], chosen: Thresholds) -> dict[str, Value]:
    """The whole template. `queues` are the work queues with the DLQ of each. Raises ConfigError if SQS has no such queues."""
    for queue in queues:
        if not _QUEUE.fullmatch(queue):
            raise ConfigError(
                f"{queue!r} is not the name of an SQS queue: letters, digits, '-' and '_', up to 80, also with .fifo."
            )
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Alarms on the dead letters and the waiting messages of queues that unpoison consumes.",
        "Parameters": {
            "AlarmTopic": {
                "Type": "String",
                "Description": "ARN of the SNS topic that hears of alarms, and of their end.",
                "AllowedPattern": "arn:[^:]+:sns:[^:]+:[0-9]{12}:.+",
            },
            "ManyDeadLetters": _number(chosen.depth, "So many dead letters are too many."),
            "OldestSeconds": _number(round(chosen.oldest), "A message may wait for so many seconds."),
        },
        "Resources": {
            f"{_identifier(queue)}{name}": alarm for queue, dlq in queues.items() for name, alarm in _alarms(queue, dlq, chosen)
        },
    }


def _number(usual: int, description: str) -> dict[str, Value]:
    return {"Type": "Number", "Default": usual, "MinValue": 0, "Description": description}


def _alarms(queue: str, dlq: str, chosen: Thresholds) -> Iterator[tuple[str, Value]]:
    visible, age = "ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage"

    def about(text: str, section: str) -> str:
        return f"{queue}: {text} {runbook_link(chosen.runbook, section)}"

    said = about(f"messages became dead letters in {dlq}. See what failed: unpoison dlq groups.", "UnpoisonDeadLettersGrowing")
    yield "DeadLetters", _alarm(f"{queue}-dead-letters", said, visible, of=dlq, above=0)
    said = about(f"many dead letters in {dlq}. See whether all failed alike: unpoison dlq groups.", "UnpoisonManyDeadLetters")
    yield "ManyDeadLetters", _alarm(f"{queue}-many-dead-letters", said, visible, of=dlq, above={"Ref": "ManyDeadLetters"})
    said = about("messages wait too long. See whether it is paused, and who consumes: unpoison status.", "UnpoisonOldMessages")
    yield "OldMessages", _alarm(f"{queue}-old-messages", said, age, of=queue, above={"Ref": "OldestSeconds"})


def _alarm(name: str, said: str, metric: str, *, of: str, above: Value) -> dict[str, Value]:
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": {"Fn::Sub": f"${{AWS::StackName}}-{name}"},
            "AlarmDescription": said,
            "Namespace": "AWS/SQS",
            "MetricName": metric,
            "Dimensions": [{"Name": "QueueName", "Value": of}],
            "Statistic": "Maximum",
            "Period": PERIOD,
            "EvaluationPeriods": 1,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": above,
            # SQS says nothing of a queue that was empty and unused for hours.
            "TreatMissingData": "notBreaching",
            "AlarmActions": [{"Ref": "AlarmTopic"}],
            "OKActions": [{"Ref": "AlarmTopic"}],
        },
    }


def _identifier(queue: str) -> str:
    """A name of letters and digits, as resources have. Names that differ in other characters alone stay apart."""
    plain = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", queue))
    return queue if queue.isalnum() else f"{plain}{hashlib.sha256(queue.encode()).hexdigest()[:6]}"
