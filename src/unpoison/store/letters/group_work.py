"""What have people noted about groups: notes, owners, links, and until when they want to hear no more of one?"""

from collections.abc import Mapping
from typing import Any

import msgspec

from unpoison.store.letters import audit
from unpoison.store.letters.counts import Changes
from unpoison.store.letters.noted import put_work, work_of
from unpoison.store.letters.turns import Turns, take_turn
from unpoison.store.letters.values import NO_WORK, GroupWork
from unpoison.store.rows import Execute

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
        put_work(run, group, result)
        was = [(name, getattr(before, name)) for name in part]
        after = [(name, getattr(result, name)) for name in part]
        audit.note(run, now, who=by, what=WHAT, about=group, before=was, after=after)

    turns.each([given], write)
    return result
