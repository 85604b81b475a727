"""The rows of the store: what is read from them, and what is written.

The statements are the same for SQLite and PostgreSQL, with ? for each value. Columns are in the order of the fields in `port.py`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from unpoison.store.port import ConsumerSign, Pause, SharedCircuit

_PAUSE = "source, kind, reason, paused_by, since, code_version, evidence"
_CIRCUIT = (
    "source, dependency, is_named, state, since, messages, samples, next_probe_at, probe_interval, told_by, revision, heard_at, "
    "rate"
)
_SIGN = "consumer, source, code_version, started_at, seen_at, state, done, failed, dead"

_ADD_PAUSE = f"insert into unpoison_pauses ({_PAUSE}) values ({'?, ' * 6}?) on conflict do nothing"
_ADD_CIRCUIT = f"insert into unpoison_circuits ({_CIRCUIT}) values ({'?, ' * 12}?) on conflict do nothing"
_PUT_SIGN = f"""
insert into unpoison_consumers ({_SIGN}) values ({"?, " * 8}?)
on conflict (source, consumer) do update
set code_version = excluded.code_version, seen_at = excluded.seen_at, state = excluded.state,
    done = excluded.done, failed = excluded.failed, dead = excluded.dead
"""


class Rows(Protocol):
    """What a statement has found or changed."""

    @property
    def rowcount(self) -> int: ...

    def fetchall(self) -> Sequence[Sequence[Any]]: ...


Execute = Callable[[str, Sequence[object]], Rows]
"""Runs a statement in which ? stands for each value. It makes the values `storable`."""


def signs(run: Execute, source: str | None) -> list[ConsumerSign]:
    return _select(run, _SIGN, "unpoison_consumers", source, "source, consumer", ConsumerSign)


def pauses(run: Execute, source: str | None) -> list[Pause]:
    return _select(run, _PAUSE, "unpoison_pauses", source, "source, kind", Pause)


def circuits(run: Execute, source: str | None) -> list[SharedCircuit]:
    return _select(run, _CIRCUIT, "unpoison_circuits", source, "source, dependency", SharedCircuit)


def put_sign(run: Execute, sign: ConsumerSign, now: float) -> None:
    _write(run, _PUT_SIGN, sign, started_at=now, seen_at=now)


def add_circuit(run: Execute, circuit: SharedCircuit, now: float) -> None:
    """Unless it is there already."""
    _write(run, _ADD_CIRCUIT, circuit, samples=json.dumps(circuit.samples), revision=1, heard_at=now)


def add_pause(run: Execute, pause: Pause, now: float) -> None:
    """Unless it is there already."""
    _write(run, _ADD_PAUSE, pause, since=now, evidence=json.dumps(dict(pause.evidence)))


_Kind = TypeVar("_Kind", Pause, SharedCircuit, ConsumerSign)

_IN_JSON: Mapping[str, tuple[Any, Any]] = {"evidence": (dict[str, Any], {}), "samples": (tuple[str, ...], ())}
"""Columns of JSON: what each is to be, and what is taken where it is something else. Anything may stand in a database."""


def _write(run: Execute, statement: str, value: msgspec.Struct, **columns: object) -> None:
    run(statement, list((msgspec.structs.asdict(value) | columns).values()))


def storable(values: Sequence[object]) -> list[object]:
    """With text as both databases can store it: PostgreSQL takes no NUL, and neither takes half a character."""
    return [
        each
        if not isinstance(each, str) or (each.isascii() and "\0" not in each)
        else each.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        for each in values
    ]


def insert(run: Execute, into: str, rows: Sequence[Sequence[object]], more: str = "") -> None:
    """Insert rows, some at once. `into` is the table with its columns, `more` what stands behind the values."""
    done = 0
    for most in _AT_ONCE:
        while len(rows) - done >= most:
            part, done = rows[done : done + most], done + most
            one = f"({', '.join('?' * len(part[0]))})"
            run(f"insert into {into} values {', '.join([one] * most)} {more}", [value for row in part for value in row])


_AT_ONCE = (32, 8, 1)
"""Rows in one statement: only a few numbers, so that a database knows the statements already."""


def _select(run: Execute, columns: str, table: str, source: str | None, order: str, kind: type[_Kind]) -> list[_Kind]:
    where, values = ("", ()) if source is None else ("where source = ?", (source,))
    found = run(f"select {columns} from {table} {where} order by {order}", values).fetchall()
    return [kind(**{name: _read(name, value) for name, value in zip(kind.__struct_fields__, row, strict=True)}) for row in found]


def _read(name: str, value: Any) -> Any:
    if name == "is_named":
        return bool(value)
    if name not in _IN_JSON:
        return value
    expected, otherwise = _IN_JSON[name]
    try:
        return msgspec.convert(json.loads(value), expected)
    except (ValueError, msgspec.ValidationError):
        return otherwise
