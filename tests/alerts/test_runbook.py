"""Does the runbook have a section for each alert, and can its commands be typed as they stand?"""

import re
import shlex
import tomllib

import click
import pytest

from tests.docs.pages import ROOT
from unpoison.alerting.alert import RUNBOOK, Thresholds
from unpoison.alerting.catalogue import alerts
from unpoison.alerting.panels import ROWS
from unpoison.cli.main import cli

PAGE = (ROOT / "docs" / "runbook.md").read_text()
SECTIONS = dict(re.findall(r'<a id="(\w+)"></a>\n\n## \1\n(.*?)(?=\n<a id|\Z)', PAGE, re.DOTALL))
ALERTS = {each.name: each for each in alerts(Thresholds())}
PARTS = ("Means.", "Hurt.", "Look.", "Do.", "Wake someone.", "False alarm.")


def typed(text):
    """The commands in a text of the runbook, or of an alert."""
    return re.findall(r"`(unpoison [^`]+)`", text)


def said_by(alert):
    found = re.search(r"unpoison (?!run)\S.*", alert.first)
    return [found[0].replace("{{ $labels.queue }}", "orders")] if found else []


COMMANDS = sorted({*typed(PAGE), *(command for each in ALERTS.values() for command in said_by(each))})


def test_each_alert_has_its_section_and_each_section_its_alert():
    assert list(SECTIONS) == list(ALERTS)
    assert [name for name, text in SECTIONS.items() if [each for each in PARTS if f"**{each}**" not in text]] == []


def test_each_section_says_how_loud_the_alert_is():
    assert {name: each.severity for name, each in ALERTS.items()} == {
        name: re.search(r"\*(Page|Ticket)\.\*", text)[1].lower() for name, text in SECTIONS.items()
    }


def test_a_section_is_short_enough_for_three_in_the_morning():
    assert {name: len(text.split()) for name, text in SECTIONS.items() if len(text.split()) > 170} == {}


def test_the_page_of_alerts_lists_each_with_its_severity():
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \|", (ROOT / "docs" / "alerts.md").read_text())
    assert rows == [(each.name, each.severity) for each in ALERTS.values()]


def test_the_runbook_is_in_the_documentation_that_the_project_names():
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
    assert f"{named}runbook/" == RUNBOOK


def test_panels_lead_to_sections_that_are_there():
    named = {panel.alert for _, panels in ROWS for panel in panels if panel.alert}
    assert named
    assert named <= set(SECTIONS)


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_can_be_typed(text):
    words = shlex.split(text)[1:]
    if words == ["run"]:  # names the program
        return
    command, path = cli, []
    while isinstance(command, click.Group):
        path.append(words.pop(0))
        command = command.get_command(click.Context(command), path[-1])
    command.make_context(" ".join(path), words, **cli.context_settings)  # raises if it is wrong usage
