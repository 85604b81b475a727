"""Which library checks a payload type, pydantic or msgspec?

Each ignores the constraints of the other without a word: msgspec reads Annotated[int, pydantic.Field(le=10)] as int. So a type
with pydantic's constraints anywhere in it goes to pydantic, and one in which they could not be checked is refused.
"""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from unpoison.errors import ConfigError
from unpoison.signature import name_of

_OF_PYDANTIC = ("pydantic", "pydantic_core", "annotated_types")
"""Packages whose constraints pydantic checks, and nobody else here."""

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


def is_for_pydantic(annotation: Any) -> bool:
    """True for models and pydantic's dataclasses, and for what has constraints of pydantic's, at any depth."""
    return any(hasattr(part, "__pydantic_core_schema__") or _constraint(part) for part in _parts(annotation, set()))


def check_constraints(annotation: Any) -> None:
    """Refuse constraints that nobody would check: pydantic's in a msgspec.Struct, msgspec's in what pydantic decodes."""
    for part in _parts(annotation, set()):
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            for name, hint in _fields(part).items():
                if constraint := next(filter(None, map(_constraint, _parts(hint, set()))), None):
                    raise ConfigError(
                        f"Payload type {part.__qualname__}: field {name!r} has the constraint {constraint!r}, which a "
                        "msgspec.Struct does not check. Write it as msgspec.Meta, for example "
                        "Annotated[int, msgspec.Meta(le=10)], or use a pydantic model."
                    )
    if not is_for_pydantic(annotation):
        return
    for part in _parts(annotation, set()):
        if limits := next((one for one in getattr(part, "__metadata__", ()) if _is_limit(one)), None):
            raise ConfigError(
                f"Payload type {name_of(annotation)} is decoded by pydantic, which does not check {limits!r} in it. Write that "
                "as a constraint of pydantic's, for example Annotated[int, pydantic.Field(le=10)]."
            )


def _constraint(part: Any) -> Any:
    """What of pydantic's is attached to an Annotated type, or None."""
    attached = getattr(part, "__metadata__", ())
    return next((one for one in attached if type(one).__module__.partition(".")[0] in _OF_PYDANTIC), None)


def _is_limit(attached: Any) -> bool:
    """Whether it is a msgspec.Meta that limits values, and does not only describe them."""
    return isinstance(attached, msgspec.Meta) and any(getattr(attached, name) is not None for name in _LIMITS)


def _parts(annotation: Any, seen: set[int]) -> Iterator[Any]:
    """A type and everything inside it: arguments, fields, what aliases stand for."""
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    yield annotation
    inside = [*typing.get_args(annotation)[: 1 if hasattr(annotation, "__metadata__") else None]]
    inside += [getattr(annotation, name) for name in ("__value__", "__supertype__") if hasattr(annotation, name)]
    inside += _fields(annotation).values()
    for part in inside:
        yield from _parts(part, seen)


def _fields(kind: Any) -> dict[str, Any]:
    """The annotations of a class with fields; none where they cannot be evaluated, which the decoder will tell better."""
    is_named_tuple = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    is_made_of_fields = isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "__pydantic_core_schema__")
    )
    if not (is_named_tuple or is_made_of_fields or typing.is_typeddict(kind)):
        return {}
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # annotations are user code
        return {}
