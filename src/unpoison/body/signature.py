"""Reads from a handler's signature what it takes, and which library checks its payload type.

pydantic and msgspec each ignore the constraints of the other silently: msgspec reads Annotated[int, pydantic.Field(le=10)] as
int. So a type with pydantic's constraints anywhere in it goes to pydantic, and one in which they could not be checked is
refused.
"""

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from unpoison.errors import ConfigError
from unpoison.model.failure import summary
from unpoison.model.message import Delivery

_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ONE_VALUE = (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An annotation that names something not there at run time. Harmless while `schema=` says what to decode."""

    annotation: Any
    reason: str


def payload_annotation(function: Callable[..., Any]) -> tuple[Any, bool]:
    """What the handler's first parameter is annotated with, and whether it wants the Delivery as its second.

    The annotation is `inspect.Parameter.empty` if there is none, and an `Unresolved` if it cannot be evaluated.
    """
    name = name_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Handler {name} has no signature to read ({error}). Wrap it: def handle(payload): ...") from error
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    accepting = positional or [parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_POSITIONAL]
    if not accepting:
        raise ConfigError(
            f"Handler {name} takes no positional parameter to be given the payload. Write: def {name}(payload): ..."
        )
    annotation = _resolved(function, accepting[0].annotation)
    if _is_delivery(annotation):
        raise ConfigError(f"Handler {name} takes the Delivery first. Write: def {name}(payload, delivery: Delivery): ...")
    wants_delivery = len(positional) > 1 and _is_delivery(_resolved(function, positional[1].annotation))
    given = positional[: 2 if wants_delivery else 1]
    for parameter in parameters:
        if parameter not in given and parameter.default is _EMPTY and parameter.kind in _ONE_VALUE:
            raise ConfigError(
                f"Handler {name} requires the parameter {str(parameter)!r}, but is called with the payload, and with the "
                "Delivery if its second parameter is annotated Delivery. Annotate it so, give it a default, or remove it."
            )
    return annotation, wants_delivery


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine to await: also for a partial, a method or an object with an async __call__."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_called(function))


def check_not_generator(function: Callable[..., Any], what: str) -> None:
    """Refuse a function with a yield: calling it runs none of its code."""
    code = _called(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        kind = "an async generator" if inspect.isasyncgenfunction(code) else "a generator"
        raise ConfigError(
            f"{what} {name_of(function)} is {kind} function: it has a yield, so calling it runs none of its code. "
            "Remove the yield, or loop over the generator inside a function without one."
        )


def _called(function: Any) -> Any:
    """The function whose code runs: inside of partials, methods and static methods; of an object its __call__."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType | staticmethod | classmethod):
            function = function.__func__
        elif inspect.isroutine(function) or isinstance(function, type):
            return function
        else:
            call = getattr(type(function), "__call__", None)  # noqa: B004 - its code is asked for, not whether it has one
            if call is None or not inspect.isfunction(call):
                return function
            return call


def input_of(function: Callable[..., Any]) -> Any:
    """What a callable given as schema= is called with: the JSON value, or the raw body if it is annotated bytes or str."""
    name = name_of(function)
    if is_coroutine_function(function):
        raise ConfigError(f"schema={name} is a coroutine function, but decoding does not wait. Use a plain function.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C do not tell
        return Any
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(f"schema={name} must take one argument, the decoded body ({error}). Got: {name}{signature}") from error
    first = _resolved(function, next(iter(signature.parameters.values())).annotation)
    return first if first is bytes or first is str else Any


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """The annotation as a type, also where it is written as text, and also where it names a class of an enclosing function."""
    if annotation is _EMPTY:
        return annotation
    plain: Any = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not hasattr(plain, "__globals__"):
        plain = getattr(plain, "__func__", None) or type(plain).__call__

    def stub() -> None: ...

    stub.__annotations__ = {"payload": annotation}
    try:
        return typing.get_type_hints(stub, getattr(plain, "__globals__", {}), _local_names(plain), include_extras=True)["payload"]
    except Exception as error:  # annotations are user code
        return Unresolved(annotation, summary(error))


def _local_names(function: Any) -> dict[str, Any]:
    """What the functions around this one know by name: those still running, and what was captured from the others."""
    names: dict[str, Any] = {}
    around = getattr(function, "__qualname__", "").split(".<locals>.")[:-1]
    scopes = {".<locals>.".join(around[: end + 1]) for end in range(len(around))}
    frame: types.FrameType | None = sys._getframe()  # noqa: SLF001 - inspect.stack() reads source files
    while frame is not None and scopes:
        if frame.f_code.co_qualname in scopes and frame.f_globals is function.__globals__:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True) if scopes else ():
        with suppress(ValueError):  # a variable that was not assigned yet
            names[name] = cell.cell_contents
    return names


def _is_delivery(annotation: Any) -> bool:
    if isinstance(annotation, Unresolved):  # imported for the type checker only
        return str(annotation.annotation).rpartition(".")[2] == "Delivery"
    return annotation is Delivery or Delivery in typing.get_args(annotation)


def name_of(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or repr(thing)


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
