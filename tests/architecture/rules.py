"""Does a package keep the rules of the house?

`check` is a function of a folder, so that each rule is itself tested on a small tree that breaks it.
A problem says where, what is wrong, and what to do.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.architecture import classes, sizes
from tests.architecture.layers import PACKAGES, SEPARATE_UNITS, layer_of, matches, unit_of
from tests.architecture.tree import Module, parents, read

TABLE = "tests/architecture/layers.py"
NAMES_THAT_SAY_NOTHING = {"util", "utils", "common", "helper", "helpers", "base", "core", "types", "internal", "misc"}

NOT_IN_CHAINS = {"", "testing"}

Modules = dict[str, Module]


@dataclass(frozen=True)
class Report:
    """Problems fail the test, remarks are shown, the summary is for whoever wants to know how things stand."""

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    summary: str


def check(package: Path) -> Report:
    modules = read(package)
    cycle = _cycle(modules)
    chain = [] if cycle else _longest_chain(modules)
    measured = sizes.measure(modules.values(), chain)
    problems = [
        *_unknown_modules(modules),
        *_directions(modules),
        *_foreign_packages(modules),
        *([f"import cycle: {' → '.join(cycle)}. Move what both sides need to a layer below them."] if cycle else ()),
        *_names(modules),
        *_surface(modules),
        *classes.problems(modules),
        *measured.problems,
    ]
    return Report(tuple(problems), measured.remarks, measured.summary)


def _unknown_modules(modules: Modules) -> Iterator[str]:
    for name, module in modules.items():
        if layer_of(name) is None:
            yield (
                f"{module.path}: nobody knows where {name!r} belongs, so nothing holds its imports. "
                f"Add {name.split('.')[0]!r} to a layer in {TABLE}."
            )


def _directions(modules: Modules) -> Iterator[str]:
    for name, module in modules.items():
        layer = layer_of(name)
        for imported in module.imports:
            target = layer_of(imported.target) if imported.ours else None
            if layer is None or target is None:
                continue
            if target.name not in (layer.name, *layer.below):
                yield (
                    f"{module.at(imported.line)}: {name or 'the package'!r} ({layer.name}) imports "
                    f"{imported.target or 'the package'!r} ({target.name}); {layer.name} may import only "
                    f"{', '.join(layer.below) or 'each other'}. The order is in {TABLE}."
                )
            elif layer is target and layer.name in SEPARATE_UNITS and unit_of(name) != unit_of(imported.target):
                yield (
                    f"{module.at(imported.line)}: {name!r} imports {imported.target!r}, "
                    f"but {layer.name} never import each other. Move what both need to the values or the port."
                )


def _foreign_packages(modules: Modules) -> Iterator[str]:
    for name, module in modules.items():
        for imported in module.imports:
            allowed = PACKAGES.get(imported.target)
            if imported.ours or (allowed is None and imported.target in sys.stdlib_module_names):
                continue
            if not any(matches(name, pattern) for pattern in allowed or ()):
                where = ", ".join(allowed) if allowed else "no module"
                yield (
                    f"{module.at(imported.line)}: {name or 'the package'!r} imports {imported.target!r}, "
                    f"which is allowed in {where}. A client is imported in its own adapter only; the list is in {TABLE}."
                )


def _cycle(modules: Modules) -> list[str]:
    """One cycle, or nothing. An import of `a.b` counts as one of `a` too, for whoever is not inside `a`: Python runs both."""
    graph: dict[str, list[str]] = {}
    for name, module in modules.items():
        targets = {imported.target for imported in module.imports if imported.ours}
        around = {outer for target in targets for outer in parents(target) if outer != name and not name.startswith(f"{outer}.")}
        graph[name] = sorted(targets | around)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        ring: list[str] = error.args[1][:0:-1]
        start = ring.index(min(ring))
        return [name or "the package" for name in [*ring[start:], *ring[:start], ring[start]]]
    return []


def _longest_chain(modules: Modules) -> list[str]:
    """The most modules that one has to read in a row, each imported by the one before.

    The package's own file only re-exports, and the contract suite imports everything on purpose: neither is counted.
    """
    graph = {
        name: sorted({each.target for each in module.imports if each.ours and not each.typing_only and each.target in modules})
        for name, module in modules.items()
        if name.split(".")[0] not in NOT_IN_CHAINS
    }
    chains: dict[str, list[str]] = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        chains[name] = [name, *max((chains[target] for target in graph.get(name, ())), key=len, default=[])]
    return max(chains.values(), key=len, default=[])


def _names(modules: Modules) -> Iterator[str]:
    for name, module in modules.items():
        own = name.split(".")[-1]
        if own.strip("_") in NAMES_THAT_SAY_NOTHING:
            yield f"{module.path}: a module called {own!r} can hold anything. Name it after the question that it answers."


def _surface(modules: Modules) -> Iterator[str]:
    """The package's own file: re-exports, and an `__all__` that is sorted, complete and true."""
    package = modules.get("")
    if package is None:
        yield "the package has no __init__.py. Add one with the public names."
        return
    listed: list[str] = []
    imported: dict[str, str] = {}
    for position, node in enumerate(package.tree.body):
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = [str(name) for name in ast.literal_eval(node.value)]
        elif position or not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield f"{package.at(node.lineno)}: the package's own file holds re-exports and __all__ only. Move this to a module."
    yield from (
        f"{package.path}: {name!r} is imported but not in __all__. Add it, or do not import it."
        for name in imported
        if name not in listed
    )
    yield from (f"{package.path}: {name!r} is in __all__ but not imported." for name in listed if name not in imported)
    # Constants, classes, functions: the order that `make format` makes.
    in_order = sorted(set(listed), key=lambda name: (not name.isupper(), not name[:1].isupper(), name))
    if listed != in_order:
        yield f"{package.path}: __all__ is not sorted, or names something twice. It should be {in_order}."
    for name in imported:
        origin, _, attribute = package.names.get(name, "").partition(":")
        if origin in modules and attribute and attribute not in _bound(modules[origin]):
            yield f"{package.path}: {name!r} is imported from {origin!r}, where there is no such name."


def _bound(module: Module) -> set[str]:
    """Every name that the module binds at its top."""
    names = set(module.names)
    for node in ast.walk(module.tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=bound):
                names.add(bound or name)
    return names
