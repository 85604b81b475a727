"""What do the rules make of made-up series? promtool says."""

import json
import re
from collections.abc import Mapping, Sequence
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


def judged(
    folder: Path,
    name: str,
    given: Sequence[Mapping[str, str]],
    at: str,
    expected: Sequence[dict],
    chosen: Thresholds = USUAL,
) -> tuple[int, str]:
    """Ask promtool whether exactly these alerts of this name fire at that time. 0, or what differs."""
    (folder / "rules.yml").write_text(yaml_text(document(chosen)))
    case = {
        "interval": "1m",
        "input_series": list(given),
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": list(expected)}],
    }
    # The rules are evaluated from the beginning up to that time, which takes seconds where it is days.
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "10m" if at.endswith("h") else "1m", "tests": [case]}
    (folder / "tests.yml").write_text(yaml.safe_dump(tests, sort_keys=False))
    return promtool("test", "rules", "tests.yml", folder=folder)
