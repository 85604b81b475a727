"""What is in a package? Its modules, read and never imported.

Module names are relative to the package: `message`, `brokers.sqlite`, and `""` for the package's own `__init__`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One import, wherever it stands: at the top, in a function, under TYPE_CHECKING."""

    target: str
    line: int
    ours: bool
    typing_only: bool = False


@dataclass(frozen=True)
class Function:
    name: str
    line: int
    lines: int


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int
    imports: tuple[Import, ...] = ()
    functions: tuple[Function, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    """What the module calls a thing → where it comes from, as `module:name`. Only things of ours."""

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"


def read(package: Path) -> dict[str, Module]:
    """Every module of the package, by name. Paths are shown from the folder above it."""
    files = {_name(package, path): path for path in sorted(package.rglob("*.py"))}
    return {name: _module(package, name, path, frozenset(files)) for name, path in files.items()}


def parents(name: str) -> Iterator[str]:
    """The packages around a module, which Python imports before it: not the outermost one, since everything is in that."""
    parts = name.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _name(package: Path, path: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(package: Path, name: str, path: Path, known: frozenset[str]) -> Module:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source, filename=str(path))
    names = {node.name: f"{name}:{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)}
    imports = []
    for node, typing_only in _statements(tree):
        for target, bound, attribute in _imported(node, package.name, name, path.name == "__init__.py"):
            ours = target == package.name or target.startswith(f"{package.name}.")
            if not ours:
                imports.append(Import(target.split(".")[0], node.lineno, ours=False, typing_only=typing_only))
                continue
            inside = target.removeprefix(package.name).removeprefix(".")
            nested = f"{inside}.{attribute}".removeprefix(".") if attribute else inside
            imports.append(Import(nested if nested in known else inside, node.lineno, ours=True, typing_only=typing_only))
            if bound:
                names[bound] = nested if nested in known else f"{inside}:{attribute}"
    return Module(
        name, path.relative_to(package.parent), tree, len(source.splitlines()), tuple(imports), tuple(_functions(tree)), names
    )


def _statements(tree: ast.AST, *, typing_only: bool = False) -> Iterator[tuple[ast.stmt | ast.Call, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from _statements(ast.Module([child], []), typing_only=True)
            for child in node.orelse:
                yield from _statements(ast.Module([child], []), typing_only=typing_only)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            yield node, typing_only
        yield from _statements(node, typing_only=typing_only)


def _imported(node: ast.stmt | ast.Call, package: str, module: str, is_package: bool) -> Iterator[tuple[str, str, str]]:
    """(module, the name it gets here, the attribute taken from it), the last two empty where there is none."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.asname or "", ""
    elif isinstance(node, ast.ImportFrom):
        origin = node.module or ""
        if node.level:
            here = [package, *module.split(".")] if module else [package]
            above = here[: len(here) - node.level + is_package]
            origin = ".".join([*above, origin]).rstrip(".")
        for alias in node.names:
            yield origin, alias.asname or alias.name, alias.name
    elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
        yield from (
            (name.value, "", "") for name in node.args[:1] if isinstance(name, ast.Constant) and isinstance(name.value, str)
        )


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A docstring makes no function longer to read: those who know it skip it."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[Function]:
    for node in ast.iter_child_nodes(tree):
        inner = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{node.name}"
            yield Function(inner, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node))
            inner += "."
        elif isinstance(node, ast.ClassDef):
            inner = f"{prefix}{node.name}."
        yield from _functions(node, inner)
