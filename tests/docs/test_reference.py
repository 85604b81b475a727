"""Do the reference pages name everything that the code has, with its real default?"""

import ast
import configparser
import dataclasses
import importlib
import inspect
import re
import tomllib
from datetime import timedelta

import unpoison
import unpoison.flow.settling
from tests.docs.pages import ROOT, blocks
from unpoison import App, Backoff, PoisonPillHandler
from unpoison.body.json_text import Unfit
from unpoison.brokers import ADAPTERS
from unpoison.cli import doctor as doctor_settings
from unpoison.control.options import Admission, Breaker
from unpoison.decide.options import Settings, check_isolation
from unpoison.errors import RemoteFailure, Steering, UnpoisonError
from unpoison.flow.registration import ASYNC_CONCURRENCY
from unpoison.model import backoff
from unpoison.model.backoff import DEFAULT_BACKOFF, MAX_AGE, MAX_ATTEMPTS
from unpoison.model.verdict import ErrorClassification
from unpoison.port.foreign import x_death
from unpoison.port.reading import RULE


def table(page: str, heading: str, nth: int = 1) -> dict[str, str]:
    """First column → second column of the n-th table below a heading."""
    text = (ROOT / "docs" / page).read_text()
    section = re.split(r"\n## ", text.partition(f"\n## {heading}")[2])[0]
    tables = re.findall(r"(?m)^\|.*\n\|[-| ]+\n((?:\|.*\n?)+)", section)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[nth - 1].splitlines()]
    return {name.strip("`"): value for row in rows for name in row[0].split(", ") for value in [row[1]]}


def shown(name: str, value: object) -> str:
    """A default as the page writes it."""
    if value is None or value in ({}, ()):
        return "none"
    if isinstance(value, Backoff):
        return f"`Backoff.exponential(base={value.base:g}, max={value.max:g})`"
    if isinstance(value, timedelta):
        return f"{value.total_seconds() / 3600:g} h"
    if name in ("timeout", "grace", "start_timeout", "delay", "within", "first_probe", "longest_probe"):
        return f"{value:g} s"
    if isinstance(value, bool | Breaker | Admission):
        return f"`{value}`" if isinstance(value, bool) else f"`{type(value).__name__}()`"
    return f"{value / 2**20:g} MiB" if name == "max_body" else str(value)


def parameters(function) -> dict[str, object]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {name: each.default for name, each in inspect.signature(function).parameters.items() if each.kind is keyword}


def test_every_option_of_the_app_is_there_with_its_default():
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    fields["url"] = None
    assert set(fields) == {"url", *parameters(App.__init__)}
    assert table("options.md", "The app") == {name: shown(name, value) for name, value in fields.items()}


def test_every_broker_is_there_with_a_url_that_it_takes_and_in_the_glossary():
    text = (ROOT / "docs" / "options.md").read_text().partition("\n### Brokers")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (?:\[[\w ]+\]\((\w+)\.md\)|memory) \| `(\w+)://[^|]*\| `unpoison(?:\[(\w+)\])?` \|$", text)
    folder = {scheme: adapter.module.split(".")[2] for scheme, adapter in ADAPTERS.items()}
    assert {folder[scheme] for _, scheme, _ in rows} == set(folder.values())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page, scheme, extra in rows:
        assert page == (folder[scheme] if scheme != "memory" else "")
        assert extra == (folder[scheme] if folder[scheme] in extras else "")
    broker = next(line for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| Broker |"))
    assert [name for name in set(folder.values()) if name not in broker.lower()] == []


def test_every_option_of_a_consumer_is_there_with_its_default():
    isolation = check_isolation(None, "orders", is_async=False, is_shared=True)
    real = parameters(App.consumer) | {"max_attempts": MAX_ATTEMPTS, "max_age": MAX_AGE, "backoff": DEFAULT_BACKOFF}
    expected = {name: shown(name, value) for name, value in real.items()} | {
        "schema": "the annotation",
        "classify": "built-in rules",
        "concurrency": f"CPUs, at least 2; {ASYNC_CONCURRENCY} if async",
        "isolation": f'`"{isolation}"`',
        "tombstones": f'`"{real["tombstones"]}"`',
        "handler": "made from the options",
    }
    assert table("options.md", "A consumer") == expected


def test_every_field_of_flow_control_is_there_with_its_default():
    for nth, usual in enumerate((Breaker(), Admission()), 1):
        fields = {name: shown(name, getattr(usual, name)) for name in usual.__struct_fields__}
        assert table("options.md", "Flow control", nth) == fields


def test_every_option_of_publish_run_and_the_handler_is_there_with_its_default():
    publish = {name: shown(name, value) for name, value in parameters(App.publish).items()}
    assert table("options.md", "Sending") == publish | {"id": "a new one"}
    assert table("options.md", "Running") == {name: shown(name, value) for name, value in parameters(App.run).items()}
    fresh = PoisonPillHandler()
    handler = {field.name: shown(field.name, getattr(fresh, field.name)) for field in dataclasses.fields(PoisonPillHandler)}
    assert table("options.md", "The decision itself") == handler | {"error_classifier": "built-in rules"}


def test_every_backoff_is_there_with_its_defaults():
    made = ("exponential", "fixed", "list", "immediate")
    for name, method in inspect.getmembers(Backoff, inspect.ismethod):
        assert name in made, f"{method} is not on the page"
    signatures = {name: inspect.signature(getattr(Backoff, name)).parameters.values() for name in made}
    expected = {
        f"Backoff.{name}": ", ".join(f"{each.name}={each.default}" for each in given if each.default is not each.empty)
        for name, given in signatures.items()
    }
    assert table("options.md", "Backoff") == {name: f"`{text}`" if text else "none" for name, text in expected.items()}


def test_every_exception_is_there_with_cause_and_cure():
    public = {name for name in unpoison.__all__ if isinstance(getattr(unpoison, name), type)}
    raised = {name for name in public if issubclass(getattr(unpoison, name), UnpoisonError | RemoteFailure)}
    steering = {name for name in public if issubclass(getattr(unpoison, name), Steering)}
    errors = table("errors.md", "What unpoison raises")
    assert set(errors) == raised
    assert all(errors.values())
    assert {name.partition("(")[0] for name in table("options.md", "What a handler may raise")} == steering


def test_every_classification_is_there():
    kinds = {str(kind) for kind in ErrorClassification}
    assert set(table("errors.md", "What is in a dead letter")) == kinds
    assert kinds <= set(re.findall(r"\w+", (ROOT / "docs" / "glossary.md").read_text()))


def test_every_rule_is_there():
    judge = inspect.getsource(unpoison.decide.policy)
    rules = set(re.findall(r'dead\("([\w-]+)"', judge)) | set(re.findall(r'"(backoff|retry-after)"', inspect.getsource(backoff)))
    rules |= set(x_death.ENDS)
    settling = inspect.getsource(unpoison.flow.settling)
    rules |= set(re.findall(r'rule = f"([\w-]+): ', settling)) | set(re.findall(r'_waiting\(.*, f"([\w-]+): ', settling))
    rules |= {"discard", *map(str, unpoison.decide.policy._NEVER_RETRIED)}
    assert {"max-attempts", "max-age", "should-retry", "backoff", "retry-after", "in-doubt", "outage", "admission"} <= rules
    listed = table("errors.md", "What is in a dead letter", 2)
    assert {name.strip("`") for name in listed} == rules


def test_every_reason_for_an_unfit_body_is_there():
    listed = re.search(r"one of: (.*?)\.", Unfit.__doc__, re.DOTALL)[1]
    assert set(table("errors.md", "What is in a dead letter", 3)) == {RULE, *(rule.strip() for rule in listed.split(","))}


def test_every_error_that_only_unpoison_makes_is_there():
    sources = (ROOT / "src" / "unpoison").rglob("*.py")
    made = {name for path in sources for name in re.findall(r'type_name="(unpoison\.\w+)"', path.read_text())}
    assert made | {"unpoison.Unfit"} == set(table("errors.md", "What is in a dead letter", 4))


def test_every_finding_of_the_doctor_is_there_and_whether_it_loses_messages():
    package = ROOT / "src" / "unpoison"
    calls = [
        node
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("Finding", "Check", "loss", "stop")
        and isinstance(node.args[0], ast.Constant)
    ]
    made = {
        ast.literal_eval(call.args[0]): ast.unparse(call.func) == "loss" or any(word.arg == "loses" for word in call.keywords)
        for call in calls
    }
    text = (ROOT / "docs" / "doctor.md").read_text()
    rows = re.findall(r"(?m)^\| (`[^|]+) \| (yes|no) \| .+ \|$", text)
    listed = {name: loses == "yes" for names, loses in rows for name in re.findall(r"`([a-z-]+)`", names)}
    assert listed == made
    modules = [importlib.import_module(adapter.doctor) for adapter in ADAPTERS.values() if adapter.doctor]
    assert {name for module in modules for name in module.NAMES} | {*doctor_settings.NAMES, "cannot-look"} == set(made)


def test_the_service_stops_later_than_the_grace_period():
    text = next(block.text for block in blocks((ROOT / "docs" / "tutorial.md").read_text()) if block.language == "ini")
    unit = configparser.ConfigParser()
    unit.optionxform = str
    unit.read_string(text)
    assert float(unit["Service"]["TimeoutStopSec"]) > Settings("memory://").grace
    assert unit["Service"]["KillMode"] == "mixed"


def test_the_words_that_carry_the_rest_are_in_the_glossary():
    words = re.findall(r"(?m)^\| ([A-Z][^|]+) \|", (ROOT / "docs" / "glossary.md").read_text())
    assert {"Attempt", "Consumer", "Dead letter", "Handler", "Replay", "Settle", "Suspect", "Verdict", "Worker"} <= set(words)
    assert words == sorted(words, key=str.lower)
