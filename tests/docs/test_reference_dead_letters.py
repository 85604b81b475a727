"""Does docs/dead-letters.md name everything that a `DLQManager` has and gives, and options.md what a run returns?"""

import inspect
import re

import msgspec

from tests.docs.pages import ROOT
from tests.docs.test_reference import table
from unpoison import App, Filter
from unpoison.deadletters import DiscardResult, DLQManager, PurgeResult, ReplayResult, Selection
from unpoison.filters.fields import FIELDS, Kind
from unpoison.model.dead_letter import DeadLetter
from unpoison.reporting.report import Tally

PAGE = (ROOT / "docs" / "dead-letters.md").read_text()


def public(names) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def called(owner: type, name: str) -> str:
    """A method as the page writes it: its name and its parameters with their defaults."""
    given = list(inspect.signature(getattr(owner, name)).parameters.values())[1:]
    return f"{name}({', '.join(str(each.replace(annotation=each.empty)) for each in given)})"


def test_every_method_of_the_manager_is_there_with_its_parameters():
    section = PAGE.partition("\n## `DLQManager`")[2].partition("\n## ")[0]
    listed = re.findall(r"(?m)^\| `(\w+\([^`]*\))` \|", section)
    methods = {name for name, _ in inspect.getmembers(DLQManager, inspect.isfunction)}
    assert sorted(listed) == sorted(called(DLQManager, name) for name in public(methods))


def test_every_attribute_of_the_manager_is_there():
    with App("memory://").dlq("orders") as manager:
        assert set(table("dead-letters.md", "`DLQManager`", 2)) == public(vars(manager))


def test_everything_that_the_results_hold_is_there():
    for nth, result in enumerate((ReplayResult, DiscardResult, PurgeResult, Selection), 1):
        assert set(table("dead-letters.md", "What the results hold", nth)) == public(dir(result))
        assert f"attribute of `{result.__name__}`" in PAGE


def test_every_field_of_a_filter_is_there_with_its_operators_and_an_example_that_the_code_has():
    rows = re.findall(r"(?m)^\| `([\w.]+)` \| (.+) \| ((?:`[^`]+` ?)+) \| `(.+)` \|$", PAGE.partition("\n### Fields")[2])
    listed = {name: (about, tuple(re.findall("`(.+?)`", operators)), example) for name, about, operators, example in rows}
    shown = {name + ".NAME" * (field.kind is Kind.HEADER): field for name, field in FIELDS.items()}
    expected = {name: (field.about, field.kind.operators, field.example) for name, field in shown.items()}
    _, operators, example = listed.pop("body.PATH")
    assert operators == Kind.JSON.operators
    assert Filter.parse(example).term.kind is Kind.JSON
    assert listed == expected


def test_every_attribute_of_a_letter_is_there():
    properties = {name for name, _ in inspect.getmembers(DeadLetter, lambda each: isinstance(each, property))}
    fields = {field.name for field in msgspec.structs.fields(DeadLetter)}
    listed = {name.strip("`") for name in table("dead-letters.md", "`DeadLetter`")}
    assert listed == fields | properties
    for name, _ in inspect.getmembers(DeadLetter, inspect.isfunction):
        assert name.startswith("_") or f"letter.{name}(" in PAGE


def test_what_a_run_returns_is_there():
    assert set(table("options.md", "Running", 2)) == set(Tally.__slots__)
    assert inspect.signature(App.run).return_annotation.__name__ in (ROOT / "docs" / "options.md").read_text()
