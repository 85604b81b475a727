"""What do the rules make of made-up series, and what does the dashboard ask? promtool and Prometheus answer."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from servers.prometheus import promtool
from unpoison.alerting.alert import Thresholds
from unpoison.alerting.rules import document
from unpoison.alerting.yaml_text import yaml_text

USUAL = Thresholds()
QUEUE = {"job": "shop", "queue": "orders"}


def series(metric: str, values: str, instance: str = "a", **labels: str) -> dict[str, str]:
    """One sample a minute, in promtool's notation: 0x10 is eleven times 0, 0+5x10 grows by 5, _ is a scrape that failed, stale
    the end of a series."""
    every = {**QUEUE, "instance": instance, **labels}
    inside = ",".join(f"{name}={json.dumps(value)}" for name, value in every.items() if value)
    return {"series": f"{metric}{{{inside}}}", "values": values}


def rule(name: str, chosen: Thresholds) -> dict:
    (group,) = yaml.safe_load(yaml_text(document(chosen)))["groups"]
    return next(each for each in group["rules"] if each.get("alert") == name)


def firing(name: str, *, value: str = "", chosen: Thresholds = USUAL, **labels: str) -> dict:
    """An alert as Prometheus sends it: with the labels of its queue, and all figures written out."""
    wanted = rule(name, chosen)
    labels = {name: value for name, value in (QUEUE | labels).items() if value}

    def written(text: str) -> str:
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)
        return re.sub(r"\{\{ \$value[^}]*\}\}", value, text)

    annotations = {key: written(text) for key, text in wanted["annotations"].items()}
    return {"exp_labels": wanted["labels"] | labels, "exp_annotations": annotations}


@dataclass(frozen=True)
class Case:
    """Exactly these alerts of this name fire at that time."""

    name: str
    given: Sequence[Mapping[str, str]]
    at: str
    expected: Sequence[dict] = ()

    def as_promtool_has_it(self) -> dict:
        asked = {"eval_time": self.at, "alertname": self.name, "exp_alerts": list(self.expected)}
        return {"interval": "1m", "input_series": list(self.given), "alert_rule_test": [asked]}


def judged(folder: Path, cases: Sequence[Case], chosen: Thresholds = USUAL) -> tuple[int, str]:
    """Ask promtool whether all of it is so. 0, or what differs."""
    (folder / "rules.yml").write_text(yaml_text(document(chosen)))
    files = []
    # The rules are evaluated from the beginning up to that time, which takes seconds where it is days.
    for interval, is_long in (("1m", False), ("10m", True)):
        tests = [case.as_promtool_has_it() for case in cases if case.at.endswith("h") is is_long]
        files.append(f"{interval}.yml")
        document_of_tests = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": tests}
        (folder / files[-1]).write_text(json.dumps(document_of_tests))
    return promtool("test", "rules", *files, folder=folder)


def asked_by_grafana(expression: str) -> str:
    """A query of the dashboard as it is sent: everything is chosen, and the last hour."""
    for name, value in {"job": ".*", "queue": ".*", "__rate_interval": "1m", "__range": "1h", "__interval": "1s"}.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    return expression
