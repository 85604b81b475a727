"""How long are files, functions and import chains?

Above the soft limit the report names it; above the hard limit the test fails.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.architecture.tree import Function, Module

FILE = (350, 400)
FUNCTION = (40, 60)
CHAIN = (14, 17)
"""Modules that import each other in a row, the contract suite (`testing`) aside."""
NINTH_DECILE = 25
"""Nine functions of ten fit in so many lines."""


@dataclass(frozen=True)
class Measured:
    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    summary: str


def measure(modules: Iterable[Module], chain: Sequence[str]) -> Measured:
    modules = list(modules)
    functions = [(module, function) for module in modules for function in module.functions]
    lengths = sorted(function.lines for _, function in functions) or [0]
    found = [
        *((f"{module.path}: {module.lines} lines", module.lines, FILE) for module in modules),
        *((f"{_named(module, function)}: {function.lines} lines", function.lines, FUNCTION) for module, function in functions),
        (f"import chain of {len(chain)} modules: {' → '.join(chain)}", len(chain), CHAIN),
    ]
    problems = [
        f"{text}, the limit is {hard}. Split it, or let its parts be handed in." for text, size, (_, hard) in found if size > hard
    ]
    remarks = [f"{text}, more than {soft}" for text, size, (soft, hard) in found if soft < size <= hard]
    decile = lengths[math.ceil(len(lengths) * 0.9) - 1]
    if decile > NINTH_DECILE:
        problems.append(f"one function in ten is longer than {decile} lines; nine of ten should fit in {NINTH_DECILE}.")
    summary = (
        f"{len(modules)} modules, {sum(module.lines for module in modules):,} lines; {len(functions)} functions, "
        f"median {lengths[len(lengths) // 2]} lines, 90th percentile {decile}, longest {lengths[-1]}; "
        f"longest import chain {len(chain)} modules"
    )
    return Measured(tuple(problems), tuple(remarks), summary)


def _named(module: Module, function: Function) -> str:
    return f"{module.at(function.line)} {function.name}"
