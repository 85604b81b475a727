"""Which scripts run at the server? The files of lua/, each with the prelude before it."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from unpoison.brokers.redis.names import DISCARDED, DLQ, LATER_MESSAGES

_folder = files("unpoison.brokers.redis") / "lua"
_prelude = (_folder / "prelude.lua").read_text(encoding="utf-8")


class Script(NamedTuple):
    """A script as the server knows it, once it has been loaded there."""

    text: str
    sha: str
    takes: int
    """How many of the keys it is given. A user needs the right to write to each of them, used or not."""

    def __call__(self, keys: Sequence[str], *arguments: Any) -> tuple[Any, ...]:
        """The command that runs it."""
        return ("EVALSHA", self.sha, self.takes, *keys[: self.takes], *arguments)


def _script(name: str, last: int = LATER_MESSAGES) -> Script:
    text = f"{_prelude}\n{(_folder / f'{name}.lua').read_text(encoding='utf-8')}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), last + 1)


APPEAR = _script("appear")
BROWSE = _script("browse", DISCARDED)
BURY = _script("bury", DLQ)
DEPTH = _script("depth")
GONE = _script("gone")
INHERIT = _script("inherit")
KEEP = _script("keep")
LEAVE = _script("leave")
LOOK = _script("look")
MARK = _script("mark")
NEWS = _script("news")
POP = _script("pop")
REMOVE = _script("remove", DISCARDED)
REPLAY = _script("replay", DISCARDED)
SUSPECT = _script("suspect")
TAKE = _script("take")
UNHAND = _script("unhand")

BY_SHA = {script.sha: script for script in list(globals().values()) if isinstance(script, Script)}
