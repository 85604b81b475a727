"""How is a document of plain values written as YAML that people like to read?

Only what our own documents have: mappings, lists, texts, numbers. Texts are quoted as JSON, which is YAML too, but for names and
for texts of several lines, which are kept as they stand.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Value = str | int | float | bool | Mapping[str, "Value"] | Sequence["Value"]

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_:]*", re.ASCII)
_MEANT_OTHERWISE = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def yaml_text(document: Mapping[str, Value]) -> str:
    return "\n".join(_lines(document)) + "\n"


def _lines(value: Value) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inside in value.items():
            yield from _entry(f"{_scalar(name)}:", inside)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inside in value:
            first, *others = list(_lines(inside))
            yield f"- {first}"
            yield from (f"  {line}" if line else "" for line in others)
    else:
        yield _scalar(value)


def _entry(head: str, value: Value) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        yield f"{head} |-"
        yield from (f"  {line}" for line in value.split("\n"))
    elif isinstance(value, (Mapping, Sequence)) and not isinstance(value, str) and value:
        yield head
        yield from (f"  {line}" if line else "" for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Value) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not value.endswith(":") and value.lower() not in _MEANT_OTHERWISE:
        return value
    return json.dumps(value, ensure_ascii=False)
