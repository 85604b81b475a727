"""Who works on letters right now, so that two do not do the same?

A claim ends by itself, so nothing is stuck behind somebody who was killed. Nothing is lost or double because one has ended too
soon: letters are folded by their identity, and what is sent twice has the same id.
"""

import os
import socket
import uuid
from collections.abc import Sequence

from unpoison.store.letters.values import Turn
from unpoison.store.port import TurnLost
from unpoison.store.rows import Execute, insert

_COLLECT = """
insert into unpoison_collectors (source, place, collector, until) values (?, ?, ?, ?)
on conflict (source, place) do update set collector = excluded.collector, until = excluded.until
where unpoison_collectors.collector = excluded.collector or unpoison_collectors.until <= ? or unpoison_collectors.until > ?
"""
MOST = 600.0
"""Seconds for which anything is claimed at most: a claim that lasts longer was made by a clock that has been set back since."""


def collect(run: Execute, turn: Turn, seconds: float, now: float) -> bool:
    """Whether this collector may move letters of this DLQ for so many seconds."""
    holders = run("select collector from unpoison_collectors where source = ? and place = ?", turn[:2]).fetchall()
    for (holder,) in holders:
        if _is_gone(holder):
            end_collecting(run, turn._replace(collector=holder))
    return run(_COLLECT, (*turn, now + seconds, now, now + MOST)).rowcount == 1


def check(run: Execute, turn: Turn) -> None:
    """Raise TurnLost if another collector has had its turn since this one asked last. One that has only ended is still ours."""
    query = "select 1 from unpoison_collectors where source = ? and place = ? and collector = ?"
    if not run(query, turn).fetchall():
        raise TurnLost("Another collector has taken over.")


def end_collecting(run: Execute, turn: Turn) -> None:
    run("delete from unpoison_collectors where source = ? and place = ? and collector = ?", turn)


def claim(run: Execute, numbers: Sequence[int], by: str, seconds: float, now: float) -> list[int]:
    """Those of these letters that wait, and that nobody else has claimed. Only to be called by whose turn it is: or one could be
    sent and released by another between these statements."""
    claimed = claimed_by_others(run, numbers, by, now)
    marks = ", ".join("?" * len(numbers))
    found = run(f"select no from unpoison_letters where no in ({marks}) and state = 'dead' order by no", numbers).fetchall()
    ours = [no for (no,) in found if no not in claimed]
    if ours:
        put = "on conflict (no) do update set claimed_by = excluded.claimed_by, until = excluded.until"
        insert(run, "unpoison_letter_claims (no, claimed_by, until)", [(no, by, now + seconds) for no in ours], put)
    return ours


def claimed_by_others(run: Execute, numbers: Sequence[int], by: str, now: float) -> set[int]:
    """Those of these letters that somebody else works on."""
    marks = ", ".join("?" * len(numbers))
    query = f"select no, claimed_by from unpoison_letter_claims where no in ({marks}) and until > ? and until <= ?"
    found = run(query, (*numbers, now, now + MOST)).fetchall()
    holders = {holder: holder == by or _is_gone(holder) for holder in {holder for _, holder in found}}
    return {no for no, holder in found if not holders[holder]}


def claimant() -> str:
    """A name for one who claims, from which processes of this host can tell whether it lives."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def _is_gone(holder: str) -> bool:
    """Whether it was a process of this host that has ended. Others are waited for."""
    host, _, rest = holder.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not rest.isdecimal():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def release(run: Execute, numbers: Sequence[int], by: str) -> None:
    marks = ", ".join("?" * len(numbers))
    run(f"delete from unpoison_letter_claims where no in ({marks}) and claimed_by = ?", (*numbers, by))
