"""What does Prometheus load? A group of rules: first the figures that are recorded, then the alerts."""

from unpoison.alerting.alert import Alert, Record, Thresholds, runbook_link
from unpoison.alerting.catalogue import alerts, records
from unpoison.alerting.yaml_text import Value


def document(chosen: Thresholds) -> dict[str, Value]:
    """The whole file. Within a group rules are evaluated in order, so alerts see the figures of the same moment."""
    rules = [*map(_record, records(chosen)), *(_alert(each, chosen) for each in alerts(chosen))]
    return {"groups": [{"name": "unpoison", "rules": rules}]}


def _record(record: Record) -> Value:
    return {"record": record.name, "labels": dict(record.labels), "expr": record.expression}


def _alert(alert: Alert, chosen: Thresholds) -> Value:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": f"{alert.meaning}\nFirst {alert.first}",
            "runbook_url": runbook_link(chosen.runbook, alert.name),
        },
    }
