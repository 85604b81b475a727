"""What must an administrator create or grant before an app can use a broker?

Each adapter describes it once, as data: `unpoison plan-topology` prints it as a shell script, or as JSON.
"""

from collections.abc import Sequence

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One object to create, or one right to grant."""

    kind: str
    """In the broker's own word: queue, exchange, topic, stream, table, rights …"""
    name: str
    why: str
    commands: tuple[str, ...]
    """Lines of a POSIX shell script. They change nothing that exists, and may be run again."""
    exists: bool = False


class Needs(msgspec.Struct, frozen=True):
    """Everything that an app's sources need at one broker."""

    broker: str
    """What kind of server it is, and where, without a password."""
    steps: Sequence[Step]
    setup: tuple[str, ...] = ()
    """Lines of the script that come first: variables and functions that the commands use."""
    unseen: str = ""
    """Why it is not known what exists already; empty if it is known."""
    notes: tuple[str, ...] = ()
    """What the administrator should know beside that, one sentence or more each."""

    def missing(self) -> "list[Step]":
        return [step for step in self.steps if not step.exists]


def no_user(what: str) -> str:
    """The note where rights cannot be printed because nobody knows for whom."""
    return f"No rights are printed: the URL names no user. Add --user NAME for {what}."
