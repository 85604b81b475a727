"""Which groups come back that were resolved?

A group that was resolved in a version of the code is open again as soon as it has a letter of a newer one: of a version that the
store saw for the first time later than that one. A letter that some consumer of the old version still writes changes nothing.
"""

from collections.abc import Sequence

from unpoison.store.letters import audit
from unpoison.store.rows import Execute

BY = "unpoison"
REGRESSED = "regressed"

_AT_ONCE = 200
_FIRST_SEEN = "select first_seen from unpoison_code_versions where source = ? and code_version = ?"


def regress(run: Execute, seen: Sequence[tuple[str, str, str]], now: float) -> None:
    """Reopen groups, of which letters have come: by fingerprint, source and version."""
    groups = sorted({group for group, _, _ in seen})
    for start in range(0, len(groups), _AT_ONCE):
        part = groups[start : start + _AT_ONCE]
        query = f"""select fingerprint, resolved_in, resolved_at from unpoison_letter_group_work
            where resolved_in is not null and regressed_in is null and fingerprint in ({", ".join("?" * len(part))})"""
        for group, resolved_in, resolved_at in run(query, part).fetchall():
            newer = [v for g, source, v in seen if g == group and _is_newer(run, source, v, resolved_in, resolved_at)]
            if newer:
                change = "update unpoison_letter_group_work set regressed_in = ?, regressed_at = ? where fingerprint = ?"
                run(change, (newer[0], now, group))
                was, after = [("resolved_in", resolved_in)], [("regressed_in", newer[0])]
                audit.note(run, now, who=BY, what=REGRESSED, about=group, before=was, after=after)


def _is_newer(run: Execute, source: str, version: str, than: str, resolved_at: float) -> bool:
    """If the source never had the version that it was resolved in, what counts is when that was said."""
    found = run(_FIRST_SEEN, (source, version)).fetchall()
    known = run(_FIRST_SEEN, (source, than)).fetchall()
    return bool(found) and version != than and found[0][0] > (known[0][0] if known else resolved_at)
