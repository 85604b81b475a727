"""What have people noted about groups: notes, owners, links, and until when they want to hear no more of one?"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from unpoison.store.letters import audit
from unpoison.store.letters.counts import Changes
from unpoison.store.letters.turns import Turns, take_turn
from unpoison.store.letters.values import NO_WORK, GroupWork
from unpoison.store.rows import Execute

_FIELDS = GroupWork.__struct_fields__
_COLUMNS = f"fingerprint, {', '.join(_FIELDS)}"
_SET = ", ".join(f"{name} = excluded.{name}" for name in _FIELDS)
_PUT = f"""insert into unpoison_letter_group_work ({_COLUMNS}) values (?{", ?" * len(_FIELDS)})
on conflict (fingerprint) do update set {_SET}"""
_GIVEN = ("note", "owner", "links", "snoozed_until", "resolved_in")
WHAT = "group"


def change(turns: Turns, group: str, given: Mapping[str, Any], by: str) -> GroupWork:
    """Change what is given and leave the rest. To say in which version a group is resolved ends that it has regressed."""
    unknown = [name for name in given if name not in _GIVEN]
    if unknown:
        raise ValueError(f"A group has no {unknown[0]!r} that can be changed. It is one of {', '.join(_GIVEN)}.")
    result = NO_WORK

    def write(run: Execute, part: Mapping[str, Any], _: Changes, now: float) -> None:
        nonlocal result
        take_turn(run)
        before = work_of(run, [group]).get(group, NO_WORK)
        told = dict(part)
        if "resolved_in" in told:
            told |= {"resolved_at": None if told["resolved_in"] is None else now, "regressed_in": None, "regressed_at": None}
        result = msgspec.structs.replace(before, **told)
        run(_PUT, (group, *_row(result)))
        was = [(name, getattr(before, name)) for name in part]
        after = [(name, getattr(result, name)) for name in part]
        audit.note(run, now, who=by, what=WHAT, about=group, before=was, after=after)

    turns.each([given], write)
    return result


def copy_work(run: Execute, group: str, others: Sequence[str]) -> None:
    """What is noted about a group is noted about these too, unless something else is."""
    known = work_of(run, [group, *others])
    for other in others:
        if group in known and other not in known:
            run(_PUT, (other, *_row(known[group])))


def _row(work: GroupWork) -> list[object]:
    return list((msgspec.structs.asdict(work) | {"links": msgspec.json.encode(work.links).decode()}).values())


def work_of(run: Execute, groups: Sequence[str]) -> dict[str, GroupWork]:
    """What is noted about these groups, where anything is."""
    found: dict[str, GroupWork] = {}
    for start in range(0, len(groups), 500):
        part = groups[start : start + 500]
        query = f"select {_COLUMNS} from unpoison_letter_group_work where fingerprint in ({', '.join('?' * len(part))})"
        for group, *values in run(query, part).fetchall():
            fields = dict(zip(_FIELDS, values, strict=True))
            found[group] = GroupWork(**fields | {"links": _links(fields["links"])})
    return found


def _links(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...])
    except (msgspec.MsgspecError, ValueError):
        return ()  # anything may stand in a database
