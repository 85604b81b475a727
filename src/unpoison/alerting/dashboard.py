"""How do the panels become a dashboard that Grafana imports?

In the classic schema, which Grafana 10 and newer import. The data source and the queues are chosen at the top.
"""

from collections.abc import Iterator
from typing import Any

from unpoison.alerting.alert import runbook_link
from unpoison.alerting.panels import ROWS, WIDTH, Panel, Query

SCHEMA = 41
HEIGHTS = {"stat": 5, "table": 7, "state-timeline": 7, "timeseries": 8, "bars": 8}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PALETTE = {"mode": "palette-classic"}


def dashboard(runbook: str) -> dict[str, Any]:
    """The document that is imported. `runbook` is the address that panels lead to."""
    return {
        "uid": "unpoison",
        "title": "unpoison: poison messages",
        "description": "What is poisoned, since when, how bad it is and what is being done about it.",
        "tags": ["unpoison", "dead letters"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-6h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "annotations": {"list": []},
        "links": [_link("Runbook", runbook)],
        "templating": {"list": [_data_source(), _labels("job", ""), _labels("queue", '{job=~"$job"}')]},
        "panels": list(_panels(runbook)),
    }


def _data_source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1, "regex": ""}


def _labels(name: str, limit: str) -> dict[str, Any]:
    """The values that a label of our metrics has."""
    asked = f"label_values(unpoison_consumer_running{limit}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": _SOURCE,
        "query": {"query": asked, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def _link(title: str, address: str) -> dict[str, Any]:
    return {
        "type": "link",
        "title": title,
        "url": address,
        "icon": "doc",
        "tooltip": "",
        "tags": [],
        "asDropdown": False,
        "targetBlank": True,
        "includeVars": False,
        "keepTime": False,
    }


def _panels(runbook: str) -> Iterator[dict[str, Any]]:
    """Rows from the top, each filled from the left; what does not fit begins the next line."""
    y, number = 0, 0
    for title, panels in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            "panels": [],
        }
        x, y, highest = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, highest = 0, y + highest, 0
            number += 1
            height = HEIGHTS[panel.kind]
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height}, runbook)
            x, highest = x + panel.width, max(highest, height)
        y += highest


def _panel(panel: Panel, number: int, place: dict[str, int], runbook: str) -> dict[str, Any]:
    address = runbook_link(runbook, panel.alert) if panel.alert else runbook
    return {
        "id": number,
        "type": "timeseries" if panel.kind == "bars" else panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "links": [{"title": "Runbook", "url": address, "targetBlank": True}],
        "targets": [_target(query, chr(ord("A") + at), panel) for at, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel, runbook)},
        "options": _OPTIONS[panel.kind],
        "transformations": list(_transformations(panel)),
    }


def _target(query: Query, name: str, panel: Panel) -> dict[str, Any]:
    target = {"refId": name, "datasource": _SOURCE, "editorMode": "code", "expr": query.expression}
    if query.legend:
        return {**target, "legendFormat": query.legend, "range": True}
    return {**target, "instant": True, "format": "table" if panel.kind == "table" else "time_series"}


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = panel.steps or ((0, "blue"),)
    # The lowest step has no figure: it holds for everything below the next.
    colours = [{"color": colour, "value": figure if at else None} for at, (figure, colour) in enumerate(steps)]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds"} if panel.kind in ("stat", "state-timeline") else _PALETTE,
        "thresholds": {"mode": "absolute", "steps": colours},
        "mappings": _mappings(panel),
        "custom": _CUSTOM.get(panel.kind, {}),
    }
    if panel.unit in ("short", "cps", "s", "percentunit"):
        defaults["min"] = 0
    return defaults


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    if not panel.words:
        return []
    options = {
        str(figure): {"index": at, "text": text, "color": colour}
        for at, (figure, (text, colour)) in enumerate(panel.words.items())
    }
    return [{"type": "value", "options": options}]


def _overrides(panel: Panel, runbook: str) -> list[dict[str, Any]]:
    """In the list of alerts each name leads to its section of the runbook."""
    if "alertname" not in panel.columns:
        return []
    address = runbook_link(runbook, "${__value.raw}")
    link = {"title": "Runbook", "url": address, "targetBlank": True}
    return [
        {"matcher": {"id": "byName", "options": panel.columns["alertname"]}, "properties": [{"id": "links", "value": [link]}]}
    ]


def _transformations(panel: Panel) -> Iterator[dict[str, Any]]:
    """A table shows its columns and nothing else, in their order."""
    if panel.columns:
        yield {"id": "filterFieldsByName", "options": {"include": {"names": list(panel.columns)}}}
        order = {name: at for at, name in enumerate(panel.columns)}
        yield {"id": "organize", "options": {"excludeByName": {}, "indexByName": order, "renameByName": dict(panel.columns)}}


_LEGEND = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
_TOOLTIP = {"mode": "multi", "sort": "desc"}
_LINES: dict[str, Any] = {"legend": _LEGEND, "tooltip": _TOOLTIP}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": _LINES,
    "bars": _LINES,
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "textMode": "auto",
        "orientation": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "table": {"cellHeight": "sm", "showHeader": True, "frameIndex": 0},
    "state-timeline": {"mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.9, **_LINES},
}
_CUSTOM: dict[str, dict[str, Any]] = {
    "timeseries": {"drawStyle": "line", "lineInterpolation": "linear", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never"},
    "bars": {"drawStyle": "bars", "lineWidth": 0, "fillOpacity": 80, "stacking": {"mode": "normal", "group": "A"}},
    "state-timeline": {"fillOpacity": 70, "lineWidth": 0},
}
