"""What is noted about groups, as it stands in the database?"""

from collections.abc import Sequence

import msgspec

from unpoison.store.letters.values import GroupWork
from unpoison.store.rows import Execute

_FIELDS = GroupWork.__struct_fields__
_COLUMNS = f"fingerprint, {', '.join(_FIELDS)}"
_SET = ", ".join(f"{name} = excluded.{name}" for name in _FIELDS)
_PUT = f"""insert into unpoison_letter_group_work ({_COLUMNS}) values (?{", ?" * len(_FIELDS)})
on conflict (fingerprint) do update set {_SET}"""


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


def copy_work(run: Execute, group: str, others: Sequence[str]) -> None:
    """What is noted about a group is noted about these too, unless something else is."""
    known = work_of(run, [group, *others])
    for other in others:
        if group in known and other not in known:
            put_work(run, other, known[group])


def put_work(run: Execute, group: str, work: GroupWork) -> None:
    values = msgspec.structs.asdict(work) | {"links": msgspec.json.encode(work.links).decode()}
    run(_PUT, (group, *values.values()))
