"""What does the dashboard show of a real incident? Makes one, and draws the answers to the dashboard's queries.

docs/images/dashboard.svg is not a screenshot of Grafana. A real consumer runs for three minutes, with poison messages all the
time, a minute in which what the handler calls is down, and a bad deploy; a real Prometheus scrapes it, and is asked what the
panels ask.
`make picture` runs this.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import servers
from servers.ports import free_port
from servers.prometheus import Prometheus
from unpoison import App
from unpoison.alerting.panels import ROWS, Panel
from unpoison.cli.svg_sheet import LEFT, LINE, MARGIN, MIDDLE, RIGHT, ROW, WIDTH, Sheet

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "dashboard.svg"
LENGTH, STEP = 180, 2
"""Seconds."""
HEIGHT = 26
NOTE = "Not a screenshot: the queries of the dashboard, answered by a Prometheus that scraped a consumer, drawn by unpoison."
DRAWN = (
    *("Dead letters", "New dead letters by class", "Dead letters by queue"),
    *("First dead letter in this time", "Latest dead letter", "Oldest waiting message"),
    *("Share that became dead letters", "Messages a second", "Failures by class"),
    *("Paused", "Dependencies", "Retry budget left", "Consumers running"),
)
APP = """
import os, pathlib
from unpoison import App

app = App(os.environ["SHOP_URL"])

@app.consumer("orders", max_attempts=3, concurrency=2)
def ship(body: str) -> None:
    if body == "die":
        os.abort()
    if body == "wrong" or pathlib.Path("bad deploy").exists():
        raise KeyError("total")

@app.consumer("mails", depends_on="smtp.example.com", concurrency=2)
def send(body: str) -> None:
    if pathlib.Path("mail is down").exists():
        raise ConnectionError("connection refused")
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name, servers.private("prometheus") as prometheus:
        assert isinstance(prometheus, Prometheus)  # noqa: S101 - the entry of that name
        folder = Path(name)
        with _consumer(folder, prometheus):
            until = _incident(folder)
            PICTURE.write_text(_drawn(prometheus, until), encoding="utf-8")
    sys.stdout.write(f"{PICTURE.name}: written\n")


@contextmanager
def _consumer(folder: Path, prometheus: Prometheus) -> Iterator[None]:
    (folder / "shop.py").write_text(APP, encoding="utf-8")
    port = str(free_port(set()))
    environment = os.environ | {"SHOP_URL": _url(folder)}
    command = [sys.executable, "-m", "unpoison", "run", "shop:app", "--metrics-port", port, "--quiet"]
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        prometheus.scrape([f"127.0.0.1:{port}"])
        while not prometheus.api("query", query="dlq_depth")["result"]:
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def _url(folder: Path) -> str:
    return f"sqlite:///{folder}/shop.db"


def _incident(folder: Path) -> float:
    """Traffic for three minutes. Returns when it was over."""
    app, began = App(_url(folder)), time.time()
    for second in range(LENGTH):
        _set(folder / "mail is down", 40 <= second < 100)
        _set(folder / "bad deploy", 130 <= second < 160)
        odd = ["wrong"] * (second % 9 == 0) + ["die"] * (second % 45 == 20)
        app.publish_many("orders", ["fine"] * 6 + odd)
        app.publish_many("mails", ["fine"] * 3)
        time.sleep(max(0.0, began + second + 1 - time.time()))
    app.close()
    return began + LENGTH


def _set(switch: Path, is_on: bool) -> None:
    if is_on:
        switch.touch()
    else:
        switch.unlink(missing_ok=True)


def _drawn(prometheus: Prometheus, until: float) -> str:
    sheet = Sheet()
    for title, panels in ROWS:
        sheet.section(title, "now", "highest")
        for panel in panels:
            if panel.title in DRAWN:
                _panel(sheet, panel, prometheus, until)
    sheet.y += LINE
    sheet.text(f"{LENGTH} s ago", "dim", x=LEFT)
    sheet.text("now", "dim", x=RIGHT, end=True)
    sheet.notes([NOTE])
    return sheet.document(
        "The dashboard of unpoison, its queries answered for a real incident",
        "Four rows: what is poisoned, since when, how bad it is, what is being done about it. A dependency is down for a minute, "
        "and a bad deploy makes dead letters until the source is paused.",
    )


def _panel(sheet: Sheet, panel: Panel, prometheus: Prometheus, until: float) -> None:
    sheet.y += LINE + 3
    sheet.text(panel.title, "dim")
    for query in panel.queries:
        expression = _asked(query.expression)
        if query.legend:
            for found in _range(prometheus, expression, until):
                _line(sheet, panel, _named(query.legend, found["metric"]), _values(found["values"], until))
        else:
            for found in prometheus.api("query", query=expression, time=str(until))["result"]:
                sheet.y += ROW - 4
                sheet.text(" ".join(found["metric"].get(name, "") for name in panel.columns).strip(), x=LEFT)
                sheet.text(_written(panel, float(found["value"][1]), until), x=MIDDLE, end=True)


def _asked(expression: str) -> str:
    """As Grafana asks: everything is chosen, and this time."""
    chosen = {"job": ".*", "queue": ".*", "__rate_interval": "6s", "__range": f"{LENGTH}s", "__interval": f"{STEP}s"}
    for name, value in chosen.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    return expression


def _range(prometheus: Prometheus, expression: str, until: float) -> Sequence[Mapping[str, Any]]:
    """The lines that are not 0 all the time."""
    asked = {"query": expression, "start": str(until - LENGTH), "end": str(until), "step": str(STEP)}
    found = prometheus.api("query_range", **asked)["result"]
    return [each for each in found if any(float(value) for _, value in each["values"])]


def _values(samples: Sequence[tuple[float, str]], until: float) -> list[float]:
    values = [0.0] * (LENGTH // STEP + 1)
    for moment, value in samples:
        values[round((moment - until + LENGTH) / STEP)] = float(value) if value != "NaN" else 0.0
    return values


def _line(sheet: Sheet, panel: Panel, name: str, values: Sequence[float]) -> None:
    sheet.y += HEIGHT + 6
    sheet.text(name[:26])
    kind = "down" if panel.kind == "state-timeline" or "dead" in panel.title.lower() else "start"
    sheet.histogram(values, max(values), HEIGHT, kind)
    sheet.text(_written(panel, values[-1], 0), x=MIDDLE, end=True)
    sheet.text(_written(panel, max(values), 0), x=WIDTH - MARGIN, end=True)


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def _written(panel: Panel, value: float, until: float) -> str:
    if panel.words:
        return panel.words[round(value)][0]
    units = {"percentunit": f"{value * 100:.3g} %", "s": f"{value:.3g} s", "cps": f"{value:.3g} a second"}
    units["dateTimeFromNow"] = f"{until - value / 1000:.0f} s ago"
    return units.get(panel.unit, f"{value:,.0f}")


if __name__ == "__main__":
    main()
