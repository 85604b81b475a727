"""Is every log line of unpoison an event that is written down, with its fields?"""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import unpoison
from scripts.docs_logs import PAGE, page
from tests.docs.test_outage_page import CHANGES
from unpoison.model.events import EVENTS, MEANINGS
from unpoison.reporting.control_lines import lines

SOURCE = Path(unpoison.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
CHECKED_AT_RUN_TIME = {"controlled", "waiting"}
"""Methods of Report that pass on fields of their callers: tests below, and those of `flow/ending.py`."""


class Told(NamedTuple):
    """What the code says about one log call: its event, the fields that it always has, and those that it may have."""

    event: str | None
    always: frozenset[str]
    maybe: frozenset[str] = frozenset()


class LogCall(NamedTuple):
    where: str
    function: str
    level: str
    told: Told | str


class Module:
    """One file, with what is needed to follow a log call to the fields that it gives."""

    def __init__(self, path: Path) -> None:
        self.name, self.tree = str(path.relative_to(SOURCE)), ast.parse(path.read_text())
        self.functions = {each.name: each for each in ast.walk(self.tree) if isinstance(each, ast.FunctionDef)}

    def calls(self) -> Iterator[LogCall]:
        for function in (each for each in ast.walk(self.tree) if isinstance(each, ast.FunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and (level := _log_call(node)):
                    yield LogCall(f"{self.name}:{node.lineno}", function.name, level, self._told(function, node))

    def _told(self, function: ast.FunctionDef, call: ast.Call) -> Told | str:
        extra = next((each.value for each in call.keywords if each.arg == "extra"), None)
        if isinstance(extra, ast.Name):
            before = [value for value in _assigned(function, extra.id) if value.lineno <= call.lineno]
            extra = max(before, key=lambda value: value.lineno, default=None)
        if not isinstance(extra, ast.Call):
            return 'it has no extra=fields("<event>", …), with an event of unpoison/model/events.py'
        return self._fields(extra, {})

    def _fields(self, call: ast.Call, given: dict[str, ast.expr]) -> Told:
        """Of `fields(…)`, or of a function of this file that returns them."""
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        named = {each.arg: each.value for each in call.keywords if each.arg}
        maybe = {key.value for each in call.keywords if each.arg is None for key in _keys(each.value)}
        if name == "fields":
            event = given.get(call.args[0].id) if isinstance(call.args[0], ast.Name) else call.args[0]
            always = {*named, *(each.removeprefix("**") for each in given if each.startswith("**"))}
            return Told(event.value if isinstance(event, ast.Constant) else None, frozenset(always), frozenset(maybe))
        function = self.functions[name]
        parameters = [each.arg for each in function.args.args if each.arg != "self"]
        passed = {
            each: given.get(value.id, value) if isinstance(value, ast.Name) else value
            for each, value in zip(parameters, call.args, strict=False)
        }
        more = {f"**{field}": value for field, value in named.items()}
        more |= {each: value for each, value in given.items() if each.startswith("**")}
        (returned,) = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
        assert isinstance(returned, ast.Call)
        return self._fields(returned, passed | more)


def _log_call(node: ast.Call) -> str:
    """The level, or nothing if it is no log call."""
    called = node.func
    is_one = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in ("log", "logging")
    return called.attr if is_one and isinstance(called, ast.Attribute) and called.attr in LEVELS else ""


def _assigned(function: ast.FunctionDef, name: str) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                targets, values = [target], [node.value]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    targets, values = target.elts, node.value.elts
                yield from (value for each, value in zip(targets, values, strict=False) if getattr(each, "id", "") == name)


def _keys(node: ast.expr) -> list[ast.Constant]:
    return [key for each in ast.walk(node) if isinstance(each, ast.Dict) for key in each.keys]


CALLS = [
    call for path in sorted(SOURCE.rglob("*.py")) if "testing" not in path.parts for call in dict.fromkeys(Module(path).calls())
]


def test_there_are_log_calls():
    assert len(CALLS) > 40


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.where)
def test_a_log_call_is_an_event_with_its_fields(call):
    assert isinstance(call.told, Told), f"{call.where}: {call.told}"
    if call.told.event is None:
        assert call.function in CHECKED_AT_RUN_TIME, f"{call.where}: its event is not written out"
        return
    assert call.told.event in EVENTS, f"{call.where}: {call.told.event!r} is missing in unpoison/model/events.py"
    event = EVENTS[call.told.event]
    if call.function not in CHECKED_AT_RUN_TIME:
        assert call.told.always >= set(event.always), f"{call.where}: {call.told.event!r} lacks a field"
        assert call.told.always | call.told.maybe <= {*event.always, *event.sometimes}, f"{call.where}: an unknown field"
    level = {"exception": "error", "log": "warning"}.get(call.level, call.level)
    assert getattr(logging, level.upper()) in event.levels, f"{call.where}: {call.told.event!r} is not told as {level}"


@pytest.mark.parametrize(("change", "now"), CHANGES, ids=lambda each: type(each).__name__)
def test_what_flow_control_tells_is_an_event_with_its_fields(change, now):
    for line in lines("orders", [change], now):
        event = EVENTS[line.event]
        assert {"source", *line.fields} >= set(event.always)
        assert {"source", *line.fields} <= {*event.always, *event.sometimes}
        assert line.level in event.levels


def test_every_event_is_told_somewhere():
    told = {call.told.event for call in CALLS} | {
        line.event for change, now in CHANGES for line in lines("orders", [change], now)
    }
    assert set(EVENTS) == told - {None}


def test_every_field_has_a_meaning_and_a_name_that_is_free():
    used = {field for event in EVENTS.values() for field in (*event.always, *event.sometimes)} | {"event"}
    assert used == set(MEANINGS)
    assert not used & RESERVED
    assert not [name for name in EVENTS if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)]


def test_the_page_about_logs_shows_them():
    assert PAGE.read_text() == page(PAGE.read_text()), "make docs writes its tables"
