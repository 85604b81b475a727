"""The package keeps the rules of the house, and each rule notices when it is broken."""

import importlib
import types
from pathlib import Path

import pytest

from tests.architecture import report
from tests.architecture.layers import LAYERS, PACKAGES, layer_of, matches
from tests.architecture.rules import Report, check
from tests.architecture.tree import read

SOUND = {
    "__init__.py": '"""Names."""\nfrom unpoison.app import App\nfrom unpoison.model.message import Message\n'
    '__all__ = ["App", "Message"]\n',
    "model/message.py": "class Message: ...\n",
    "errors.py": "class UnpoisonError(Exception): ...\nclass ConfigError(UnpoisonError): ...\n"
    "class MissingExtra(ConfigError): ...\n",
    "decide/policy.py": "import enum\nfrom unpoison.model import message\ndef judge(given: message.Message) -> None: ...\n",
    "port/broker.py": "from typing import Protocol\nfrom unpoison.model.message import Message\nclass Broker(Protocol): ...\n",
    "brokers/__init__.py": "def connect() -> None:\n    from unpoison.brokers import sqlite\n",
    "brokers/memory.py": "from unpoison.port.broker import Broker\nclass MemoryBroker(Broker): ...\n",
    "brokers/sqlite/__init__.py": "from unpoison.brokers.sqlite.schema import TABLES\n",
    "brokers/sqlite/schema.py": "import sqlite3\nTABLES = ()\n",
    "app.py": "from unpoison import brokers\nfrom unpoison.decide.policy import judge\nclass App: ...\n",
    "cli/__init__.py": "",
    "cli/main.py": "import click\nfrom unpoison import App\n",
}

BROKEN = {
    "a value imports a decision": (
        {"model/message.py": "from unpoison.decide.policy import judge"},
        "'model.message' (model) imports 'decide.policy' (decide)",
    ),
    "a decision imports the app": ({"decide/policy.py": "import unpoison.app"}, "'decide.policy' (decide) imports 'app' (app)"),
    "the port imports a broker": (
        {"port/broker.py": "import unpoison.brokers.memory"},
        "'port.broker' (port) imports 'brokers.memory' (brokers)",
    ),
    "a broker imports a decision": (
        {"brokers/memory.py": "from unpoison.decide import policy"},
        "(brokers) imports 'decide.policy' (decide)",
    ),
    "a broker imports the registry": (
        {"brokers/memory.py": "from unpoison.brokers import connect"},
        "imports 'brokers' (registry)",
    ),
    "the app imports a broker by name": (
        {"app.py": "from unpoison.brokers.memory import MemoryBroker\nclass App: ..."},
        "(app) imports 'brokers.memory'",
    ),
    "the app imports what runs in a worker": (
        {"app.py": "import unpoison.programs.template\nclass App: ...", "programs/template.py": ""},
        "'app' (app) imports 'programs.template' (programs)",
    ),
    "the app imports the command line": (
        {"app.py": "import unpoison.cli.main\nclass App: ..."},
        "'app' (app) imports 'cli.main' (cli)",
    ),
    "the app imports the package": (
        {"app.py": "from unpoison import App as Other\nclass App: ..."},
        "'app' (app) imports 'the package' (package)",
    ),
    "an import under TYPE_CHECKING": (
        {"model/message.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from unpoison.app import App"},
        "'model.message' (model) imports 'app' (app)",
    ),
    "an import inside a function": (
        {"model/message.py": "def late():\n    import unpoison.app"},
        "'model.message' (model) imports 'app' (app)",
    ),
    "a relative import": (
        {"model/message.py": "from ..decide.policy import judge"},
        "'model.message' (model) imports 'decide.policy' (decide)",
    ),
    "a relative import from a subpackage": ({"brokers/sqlite/__init__.py": "from ...app import App"}, "imports 'app' (app)"),
    "an import by importlib": (
        {"model/message.py": "import importlib\nimportlib.import_module('unpoison.app')"},
        "imports 'app' (app)",
    ),
    "brokers import each other": (
        {"brokers/memory.py": "from unpoison.brokers.sqlite import schema"},
        "brokers never import each other",
    ),
    "a cycle": (
        {"model/message.py": "import unpoison.errors", "errors.py": "import unpoison.model.message"},
        "import cycle: errors → model.message → errors",
    ),
    "a cycle through a package's own file": (
        {
            "errors.py": "import unpoison.model.dead_letter",
            "model/__init__.py": "import unpoison.errors",
            "model/dead_letter.py": "",
        },
        "import cycle: errors → model → errors",
    ),
    "a module that nobody placed": ({"surprise.py": ""}, "Add 'surprise' to a layer in tests/architecture/layers.py"),
    "a package that nobody placed": ({"surprise/inner.py": ""}, "Add 'surprise' to a layer in tests/architecture/layers.py"),
    "a client outside its adapter": (
        {"app.py": "import sqlite3\nclass App: ..."},
        "'app' imports 'sqlite3', which is allowed in brokers.sqlite",
    ),
    "a package that nobody may import": (
        {"model/message.py": "import aiohttp.client"},
        "imports 'aiohttp', which is allowed in no module",
    ),
    "the command line's package in the flow": (
        {"app.py": "from rich import table\nclass App: ..."},
        "imports 'rich', which is allowed in cli",
    ),
    "a name that says nothing": ({"cli/_utils.py": ""}, "a module called '_utils' can hold anything"),
    "a package whose name says nothing": ({"brokers/core/__init__.py": ""}, "a module called 'core' can hold anything"),
    "no package file": ({"__init__.py": None}, "the package has no __init__.py"),
    "code in the package file": ({"__init__.py": SOUND["__init__.py"] + "\nprint()\n"}, "holds re-exports and __all__ only"),
    "an unlisted re-export": (
        {"__init__.py": SOUND["__init__.py"] + "from unpoison.decide.policy import judge\n"},
        "'judge' is imported but not in __all__",
    ),
    "a listed name that is not there": (
        {"__init__.py": SOUND["__init__.py"].replace('"App",', '"App", "Lost",')},
        "'Lost' is in __all__ but not imported",
    ),
    "an unsorted __all__": (
        {"__init__.py": SOUND["__init__.py"].replace('"App", "Message"', '"Message", "App"')},
        "__all__ is not sorted",
    ),
    "a name listed twice": (
        {"__init__.py": SOUND["__init__.py"].replace('"App", "Message"', '"App", "App", "Message"')},
        "or names something twice",
    ),
    "a re-export that does not exist": (
        {"model/message.py": ""},
        "'Message' is imported from 'model.message', where there is no such name",
    ),
    "a tower of classes": (
        {
            "model/message.py": "class A: ...\nclass Message(A): ...",
            "decide/policy.py": "from unpoison.model import message\nclass B(message.Message): ...",
        },
        "B → Message → A are 3 levels, the limit is 2",
    ),
    "a tower of exceptions": (
        {"model/failure.py": "from unpoison.errors import MissingExtra\nclass Deeper(MissingExtra): ..."},
        "4 levels, the limit is 3",
    ),
    "a tower through a re-export": (
        {"cli/main.py": "from unpoison import App\nclass B(App): ...\nclass C(B): ..."},
        "C → B → App are 3 levels",
    ),
    "two parents of ours": (
        {"model/message.py": "class A: ...\nclass B: ...\nclass Message(A, B): ..."},
        "Message is put together by inheritance",
    ),
    "a mixin": ({"model/message.py": "class LogMixin: ...\nclass Message: ..."}, "LogMixin is put together by inheritance"),
    "a file that is too long": ({"model/verdict.py": "x = 1\n" * 401}, "unpoison/model/verdict.py: 401 lines, the limit is 400"),
    "a function that is too long": (
        {"model/verdict.py": "def long():\n" + "    x = 1\n" * 60},
        "verdict.py:1 long: 61 lines, the limit is 60",
    ),
    "one long function in five": (
        {"model/verdict.py": ("def long():\n" + "    x = 1\n" * 26) * 3 + "def short(): ...\n" * 10},
        "one function in ten is longer than 27 lines",
    ),
    "an import chain that is too long": (
        {f"cli/c{n}.py": f"import unpoison.cli.c{n + 1}" for n in range(17)} | {"cli/c17.py": ""},
        "import chain of 18 modules: cli.c0 → cli.c1 → ",
    ),
}

REMARKED = {
    "a long file": ({"model/verdict.py": "x = 1\n" * 351}, "unpoison/model/verdict.py: 351 lines, more than 350"),
    "a long function": (
        {"model/verdict.py": "def long():\n" + "    x = 1\n" * 40},
        "unpoison/model/verdict.py:1 long: 41 lines, more than 40",
    ),
    "a long chain": (
        {f"cli/c{n}.py": f"import unpoison.cli.c{n + 1}" for n in range(14)} | {"cli/c14.py": ""},
        "import chain of 15 modules",
    ),
}


def checked(folder: Path, changes: dict[str, str | None]) -> Report:
    """What the rules say about the sound tree with these changes."""
    for name, text in (SOUND | changes).items():
        if text is not None:
            path = folder / "unpoison" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return check(folder / "unpoison")


def test_a_sound_tree_has_no_problems(tmp_path):
    report = checked(tmp_path, {})
    assert (report.problems, report.remarks) == ((), ())


@pytest.mark.parametrize(("changes", "expected"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_noticed_and_explained(tmp_path, changes, expected):
    assert expected in "\n".join(checked(tmp_path, changes).problems)


@pytest.mark.parametrize(("changes", "expected"), REMARKED.values(), ids=REMARKED)
def test_what_grows_long_is_reported_before_it_fails(tmp_path, changes, expected):
    report = checked(tmp_path, changes)
    assert expected in "\n".join(report.remarks)
    assert expected not in "\n".join(report.problems)


def test_a_chain_counts_what_runs_and_not_what_only_the_type_checker_reads(tmp_path):
    only_typed = {f"cli/c{n}.py": f"if TYPE_CHECKING:\n    import unpoison.cli.c{n + 1}" for n in range(25)} | {"cli/c25.py": ""}
    assert checked(tmp_path, only_typed).problems == ()


def test_a_chain_does_not_count_the_contract_suite(tmp_path):
    contract = {f"testing/c{n}.py": f"import unpoison.testing.c{n + 1}" for n in range(25)} | {"testing/c25.py": ""}
    assert checked(tmp_path, contract).problems == ()


def test_the_package_keeps_every_rule():
    assert "\n".join(check(report.PACKAGE).problems) == ""


def test_the_table_speaks_of_nothing_that_is_gone():
    modules = read(report.PACKAGE)
    patterns = [pattern for layer in LAYERS for pattern in layer.patterns] + [
        each for allowed in PACKAGES.values() for each in allowed
    ]
    assert [pattern for pattern in patterns if not any(matches(name, pattern) for name in modules)] == []
    used = {imported.target for module in modules.values() for imported in module.imports if not imported.ours}
    assert sorted(set(PACKAGES) - used) == []


def test_a_module_has_one_place():
    expected = {
        "model.dead_letter": "model",
        "errors": "model",
        "brokers": "registry",
        "brokers.sqlite.schema": "brokers",
    }
    assert {name: layer_of(name).name for name in expected} == expected


def test_the_page_shows_the_same_layers_in_the_same_order():
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.split("## Layers")[1].split("```text\n")[1].split("```")[0]
    assert [line.split()[0] for line in block.splitlines()] == [
        layer.name for layer in LAYERS if layer.name not in ("registry", "package")
    ]


def test_what_the_package_shows_is_what_it_lists():
    unpoison = importlib.import_module("unpoison")  # here: the rules above can be checked even when it cannot be imported
    shown = {
        name for name, value in vars(unpoison).items() if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert shown == set(unpoison.__all__)
