"""How deep do classes inherit from each other?

Only classes of ours are levels: `msgspec.Struct`, `Protocol`, an enum or a built-in exception below them is none.
"""

import ast
import builtins
from collections.abc import Iterator

from tests.architecture.tree import Module

MAX_DEPTH = 2
MAX_EXCEPTION_DEPTH = 3


def problems(modules: dict[str, Module]) -> Iterator[str]:
    found = {
        f"{module.name}:{node.name}": (module, node)
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    own = {key: [base for base in _bases(modules, module, node) if base in found] for key, (module, node) in found.items()}
    for key, (module, node) in found.items():
        lineage = list(_lineage(key, own))
        limit = MAX_EXCEPTION_DEPTH if any(_is_exception(found[each][1]) for each in lineage) else MAX_DEPTH
        if len(lineage) > limit:
            tower = " → ".join(each.split(":")[1] for each in lineage)
            yield f"{module.at(node.lineno)}: {tower} are {len(lineage)} levels, the limit is {limit}. Hold the other instead."
        if len(own[key]) > 1 or node.name.lower().endswith("mixin"):
            yield f"{module.at(node.lineno)}: {node.name} is put together by inheritance. Let it have its parts instead."


def _lineage(key: str, own: dict[str, list[str]]) -> list[str]:
    """The class and the longest line of its ancestors."""
    return [key, *max((_lineage(base, own) for base in own[key]), key=len, default=[])]


def _bases(modules: dict[str, Module], module: Module, node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        expression = base.value if isinstance(base, ast.Subscript) else base
        head, _, attribute = ast.unparse(expression).partition(".")
        origin = module.names.get(head, "")
        yield _followed(modules, f"{origin}:{attribute}" if attribute else origin)


def _followed(modules: dict[str, Module], origin: str) -> str:
    """Through re-exports to the module that defines it."""
    name, _, attribute = origin.partition(":")
    further = modules[name].names.get(attribute, origin) if name in modules and attribute else origin
    return origin if further == origin else _followed(modules, further)


def _is_exception(node: ast.ClassDef) -> bool:
    known = (getattr(builtins, ast.unparse(base), None) for base in node.bases)
    return any(isinstance(base, type) and issubclass(base, BaseException) for base in known)
