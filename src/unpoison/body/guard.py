"""Checks whether a body fits the handler, and decodes it.

A decoder is built once per consumer, from the handler's annotation or `schema=`. It turns a raw body into what the
handler is called with, or raises Unfit. It runs for every message, so the checks of the success path are cheap bounds
that never let trouble through, and only a body that exceeds a bound is looked at exactly. Bodies are never changed.

A tombstone, a message whose body is null, is decoded as the JSON text `null` would be: a handler that takes `Order | None` gets
None. Handlers that take the raw body get an empty one, or None if they take that.
"""

import inspect
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from unpoison.body.json_text import (
    NINETEEN,
    SHAPES,
    Unfit,
    not_utf8,
    one_line,
    too_deep,
    too_large,
    too_wide,
    why_not,
    wide_integer,
)
from unpoison.body.signature import Unresolved, check_constraints, input_of, is_for_pydantic, name_of
from unpoison.errors import ConfigError, MissingExtra
from unpoison.model.failure import summary, text_of, type_name
from unpoison.model.message import Delivery

Decode: TypeAlias = Callable[[bytes | None], Any]
"""From the body of a message, or None for a tombstone, to what the handler is called with."""

Parse: TypeAlias = Callable[[bytes], Any]

_EMPTY = inspect.Parameter.empty
_NULL = b"null"

TOMBSTONE = "the message is a tombstone (its value is null), which this handler does not take:"
TAKE_OR_SKIP = "Annotate its payload with '| None' to be given None, or set tombstones='skip' on the consumer."
_parse = msgspec.json.Decoder().decode


def decoder(annotation: Any, schema: Any, *, max_body: int | None, max_depth: int) -> Decode:
    """Build what makes the handler's argument of a body. A schema goes before the annotation.

    Raises ConfigError for what can never decode anything, so that it is found at start-up.
    """
    limit = sys.maxsize if max_body is None else max_body
    if schema is None:
        return _for_type(annotation, limit, max_depth)
    if isinstance(schema, dict):
        return _then(_for_type(Any, limit, max_depth), _json_schema(schema))
    if isinstance(schema, type | types.UnionType | typing.NewType) or typing.get_origin(schema) is not None:
        return _for_type(schema, limit, max_depth)
    if callable(schema):
        return _then(_for_type(input_of(schema), limit, max_depth), _calling(schema))
    raise ConfigError(f"schema must be a type, a JSON Schema (a dict) or a callable, got {schema!r}. Pass one of these, or None.")


def _for_type(annotation: Any, limit: int, max_depth: int) -> Decode:
    if (raw := _raw_type(annotation)) is not None:
        return _raw(limit, as_text=raw is str, null=None if annotation is not raw else raw())
    if annotation is None or annotation is _EMPTY or annotation is Any or annotation is object:
        return _guarded(_parse, limit, max_depth, skims=False)
    if isinstance(annotation, Unresolved):
        raise ConfigError(
            f"Annotation {annotation.annotation!r} of the payload cannot be resolved ({annotation.reason}). "
            "Import it where the handler is defined, also at run time, or pass schema=."
        )
    if annotation is bytearray or annotation is memoryview:
        raise ConfigError(f"Annotation {annotation!r} is not supported for a payload. For the raw body use bytes.")
    check_constraints(annotation)
    if is_for_pydantic(annotation):
        return _guarded(_pydantic(annotation), limit, max_depth, skims=False)
    return _guarded(_msgspec(annotation), limit, max_depth, skims=True)


def _raw_type(annotation: Any) -> type[bytes] | type[str] | None:
    """The type of a handler that takes the body as it came, also if it takes None for a tombstone."""
    taken = [each for each in typing.get_args(annotation) or (annotation,) if each is not types.NoneType]
    is_raw = len(taken) == 1 and (taken[0] is bytes or taken[0] is str)
    return taken[0] if is_raw and typing.get_origin(annotation) in (None, typing.Union, types.UnionType) else None


def _guarded(parse: Parse, limit: int, max_depth: int, *, skims: bool) -> Decode:
    """`skims` says that the parser passes over fields it does not know without looking at their encoding."""

    def decode(body: bytes | None) -> Any:
        if body is None:
            return _decoded_tombstone(parse)
        size = len(body)
        if size > limit:
            raise too_large(size, limit)
        # One pass for two bounds: what it drops are the opening brackets, and no text is nested deeper than it has of them.
        shapes = body.translate(SHAPES, b"[{")
        if size - len(shapes) > max_depth and (unfit := too_deep(body, max_depth)):
            raise unfit
        try:
            if skims and not body.isascii():
                body.decode()
            value = parse(body)
        except (Unfit, MemoryError):  # that memory ran out says nothing about the body
            raise
        except Exception as error:  # __post_init__ and validators are user code
            raise why_not(body, error) from None
        # partition and not `in`: bytes.__contains__ first tries its operand as a number, which costs more than the search.
        if shapes.partition(NINETEEN)[1] and (wide := wide_integer(body)):
            raise too_wide(wide)
        return value

    return decode


def _decoded_tombstone(parse: Parse) -> Any:
    try:
        return parse(_NULL)
    except MemoryError:
        raise
    except Exception as error:  # __post_init__ and validators are user code
        why = error.text if isinstance(error, Unfit) else text_of(error)
        raise Unfit("tombstone", f"{TOMBSTONE} {why}. {TAKE_OR_SKIP}") from None


def _raw(limit: int, *, as_text: bool, null: bytes | str | None) -> Decode:
    def decode_bytes(body: bytes | None) -> Any:
        if body is None:
            return null
        if len(body) > limit:
            raise too_large(len(body), limit)
        return body

    def decode_text(body: bytes | None) -> Any:
        if body is None:
            return null
        if len(body) > limit:
            raise too_large(len(body), limit)
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(body, error.start) from None

    return decode_text if as_text else decode_bytes


def _then(first: Decode, second: Callable[[Any], Any]) -> Decode:
    def decode(body: bytes | None) -> Any:
        return second(first(body)) if body is not None else _decoded_tombstone(lambda _: second(first(None)))

    return decode


def _msgspec(annotation: Any) -> Parse:
    try:
        unknown = next(_foreign_classes(msgspec.inspect.type_info(annotation), set()), None)
        decode: Parse = msgspec.json.Decoder(annotation).decode
    except Exception as error:  # msgspec evaluates annotations of user classes
        raise ConfigError(
            f"Payload type {name_of(annotation)} cannot be decoded from JSON: {text_of(error)}. Change the type, or pass schema=."
        ) from error
    if unknown is not None:
        raise ConfigError(
            f"Payload type {name_of(annotation)} cannot be decoded from JSON: {type_name(unknown)!r} cannot be built from it. "
            "Use a msgspec.Struct, pydantic model, dataclass, TypedDict or plain type, or pass a function as schema=."
        )
    return decode


def _foreign_classes(node: Any, seen: set[int]) -> Iterator[type]:
    """Classes in a type that msgspec would leave to a hook, and so refuse in every message."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.CustomType):
        yield node.cls
    if isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in node.__struct_fields__:
            yield from _foreign_classes(getattr(node, name), seen)
    elif isinstance(node, tuple):
        for part in node:
            yield from _foreign_classes(part, seen)


def _pydantic(annotation: Any) -> Parse:
    try:
        import pydantic  # noqa: PLC0415 - an extra
    except ImportError as error:  # the constraints are those of annotated_types, which others use too
        raise MissingExtra(f"Payload type {name_of(annotation)}", "pydantic", "pydantic") from error
    try:
        validate = pydantic.TypeAdapter(annotation).validator.validate_json
    except Exception as error:
        raise ConfigError(f"Payload type {name_of(annotation)} cannot be used: {one_line(text_of(error))}") from error

    def parse(body: bytes) -> Any:
        _parse(body)  # pydantic's own parser takes NaN, Infinity and 1e999
        try:
            return validate(body)
        except pydantic.ValidationError as error:
            raise Unfit("schema", _first_complaint(error)) from None

    return parse


def _first_complaint(error: Any) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"at ${where}: {first['msg']}, got {reprlib.repr(first['input'])}{more}"


def _json_schema(schema: dict[str, Any]) -> Callable[[Any], Any]:
    """Checks values against a JSON Schema. `format` is an annotation, as the specification has it, and asserts nothing."""
    try:
        import jsonschema  # noqa: PLC0415 - an extra
        import referencing.jsonschema  # noqa: PLC0415 - comes with it
    except ImportError as error:
        raise MissingExtra("JSON Schema", "jsonschema", "jsonschema") from error
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    nothing_else = referencing.jsonschema.EMPTY_REGISTRY  # the default one would fetch references from the network
    specification = referencing.jsonschema.specification_with(kind.META_SCHEMA["$schema"])
    try:
        kind.check_schema(schema)
        root = specification.create_resource(schema)
        _follow_references(root, nothing_else.resolver_with_root(root), specification.create_resource, set())
    except jsonschema.SchemaError as error:
        problem = one_line(error.message)
        raise ConfigError(f"schema is not a JSON Schema: at {error.json_path}: {problem}. Correct it there.") from error
    except referencing.exceptions.Unresolvable as error:
        raise ConfigError(
            f"schema refers to {error.ref!r}, which it does not contain. Nothing is fetched from elsewhere: put it under $defs."
        ) from error
    validator = kind(schema, registry=nothing_else)

    def check(value: Any) -> Any:
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        except Exception as broken:  # a schema that refers to itself without end
            raise Unfit("schema", f"the JSON Schema could not be applied: {summary(broken)}") from None
        if error is not None:
            raise Unfit("schema", f"at {error.json_path}: {error.message}")
        return value

    return check


def _follow_references(resource: Any, resolver: Any, as_resource: Callable[[Any], Any], seen: set[int]) -> None:
    """Look every reference up once, so that one that leads nowhere is found before the first message."""
    contents = resource.contents
    if id(contents) in seen:
        return
    seen.add(id(contents))
    if isinstance(contents, dict) and isinstance(contents.get("$ref"), str):
        found = resolver.lookup(contents["$ref"])
        _follow_references(as_resource(found.contents), found.resolver, as_resource, seen)
    for part in resource.subresources():
        _follow_references(part, resolver.in_subresource(part), as_resource, seen)


def _calling(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        try:
            return function(value)
        except MemoryError:
            raise
        except Exception as error:
            raise Unfit("schema", f"{name_of(function)} refused it: {summary(error)}") from None

    return call


KeyReader = Callable[[Delivery], Delivery]


def key_reader(key_from: str, source: str) -> KeyReader:
    """A function that gives a delivery its key, where it has none and one can be found."""
    kind, _, path = key_from.partition(":") if isinstance(key_from, str) else ("", "", "")
    if kind not in ("header", "body") or not path or not all(path.split(".")):
        raise ConfigError(f"Consumer {source!r}: key_from must be 'header:name' or 'body:path.to.field', got {key_from!r}.")
    find: Callable[[Delivery], str | None] = (
        _in_body(path.split(".")) if kind == "body" else lambda delivery: delivery.headers.get(path)
    )

    def read(delivery: Delivery) -> Delivery:
        if delivery.key is not None:
            return delivery
        key = find(delivery)
        return delivery if key is None else msgspec.structs.replace(delivery, key=key)

    return read


def _in_body(path: Sequence[str]) -> Callable[[Delivery], str | None]:
    decode = msgspec.json.Decoder().decode

    def find(delivery: Delivery) -> str | None:
        try:
            value: Any = decode(delivery.body)
        except Exception:
            return None  # no key can be found in what is not JSON; the guard will say so
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    return find
