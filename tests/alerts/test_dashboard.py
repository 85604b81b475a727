"""Is the dashboard one that Grafana reads, and does it hang together?"""

import json
import re

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from servers.prometheus import promtool
from tests.alerts.asking import asked_by_grafana
from unpoison.alerting.dashboard import dashboard
from unpoison.alerting.panels import ROWS, WIDTH

SHOWN = dashboard("https://wiki.example/")
PANELS = [each for each in SHOWN["panels"] if each["type"] != "row"]


def lost(ours, theirs, path=""):
    """What of ours is not in theirs, or is something else there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [each for name, value in ours.items() for each in lost(value, theirs.get(name), f"{path}.{name}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [each for at, pair in enumerate(zip(ours, theirs, strict=True)) for each in lost(*pair, f"{path}[{at}]")]
    return [] if ours == theirs else [f"{path}: {ours!r} became {theirs!r}"]


def test_grafana_knows_every_field():
    """Read into the types that Grafana generates from its own schema, and written again, it is the same."""
    register_default_plugins()
    back = json.loads(json.dumps(Dashboard.from_json(SHOWN), cls=JSONEncoder))
    assert lost(SHOWN, back) == []


def test_a_field_that_grafana_does_not_know_would_be_found():
    register_default_plugins()
    wrong = json.loads(json.dumps(SHOWN).replace('"reduceOptions"', '"reduceOption"'))
    assert lost(wrong, json.loads(json.dumps(Dashboard.from_json(wrong), cls=JSONEncoder)))


@pytest.mark.servers("prometheus")
def test_prometheus_can_read_every_query(tmp_path):
    """tests/alerts/test_real.py asks them of real consumers."""
    queries = [query for _, panels in ROWS for panel in panels for query in panel.queries]
    rules = [{"record": f"query{at}", "expr": asked_by_grafana(query.expression)} for at, query in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    code, said = promtool("check", "rules", "queries.yml", folder=tmp_path)
    assert code == 0, said


def test_panels_fill_the_rows_and_none_covers_another():
    taken = set()
    for panel in SHOWN["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < WIDTH
        assert not cells & taken, panel["title"]
        taken |= cells
    assert [each["title"] for each in SHOWN["panels"] if each["type"] == "row"] == [title for title, _ in ROWS]


def test_ids_are_unique_and_data_comes_from_the_chosen_source():
    assert len({each["id"] for each in SHOWN["panels"]}) == len(SHOWN["panels"])
    variables = {each["name"] for each in SHOWN["templating"]["list"]}
    assert variables == {"datasource", "job", "queue"}
    for panel in PANELS:
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            used = set(re.findall(r"\$(?!__)(\w+)", target["expr"]))
            assert used <= variables, panel["title"]
            assert "job" in used, f"{panel['title']} is the same whatever is chosen"


def test_every_panel_says_what_it_shows_and_leads_to_the_runbook():
    for panel in PANELS:
        assert panel["description"]
        assert panel["links"][0]["url"].startswith("https://wiki.example/")
