"""Imports an app by "module:name" or "path/to/file.py:name"."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from unpoison.app import App
from unpoison.app_internals import importing
from unpoison.errors import ConfigError

MAIN = "__unpoison_main__"
"""The name under which a script is imported, so that its `if __name__ == "__main__":` part does not run again."""


def import_app(reference: str) -> App:
    """Import the module and return the app in it. What the import itself raises is passed on."""
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise ConfigError(f"{reference!r} does not name an app. Write module:app, or path/to/file.py:app.")
    with importing():
        module = _from_file(where) if where.endswith(".py") else _from_module(where)
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]  # checked right below
    if not isinstance(found, App):
        apps = sorted(attribute for attribute, value in vars(module).items() if isinstance(value, App))
        there = "It has none: write app = App('sqlite:///shop.db') in it."
        if apps:
            there = f"It has {', '.join(apps)}. Write {where}:{apps[0]}"
        raise ConfigError(f"{where!r} has no App named {name!r}. {there}")
    return found


def _from_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # something that the app itself imports is missing
        raise ConfigError(
            f"There is no module {name!r} in {str(Path.cwd())!r} or on the Python path. Run from the folder that holds it, "
            f"or give the file: path/to/{name.rpartition('.')[2]}.py:app."
        ) from None


def _from_file(path: str) -> ModuleType:
    file = Path(path).resolve()
    if not file.is_file():
        raise ConfigError(f"There is no file {path!r}. Check the path; it is relative to {str(Path.cwd())!r}.")
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(MAIN, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path!r} cannot be imported as Python. Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN] = module
    spec.loader.exec_module(module)
    return module
