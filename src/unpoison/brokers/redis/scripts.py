"""The scripts that run on the server: the files of lua/, each after the prelude."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from unpoison.brokers.redis.names import COUNTERS, DISCARDED, DLQ, LATER_MESSAGES, SOURCE

_folder = files("unpoison.brokers.redis") / "lua"
_prelude = (_folder / "prelude.lua").read_text(encoding="utf-8")


class Script(NamedTuple):
    """A script, with the hash by which the server knows it."""

    text: str
    sha: str
    takes: int
    """How many of the keys it gets. A user needs permission to write to each of them, used or not."""

    def __call__(self, keys: Sequence[str], *arguments: Any, more: Sequence[str] = ()) -> tuple[Any, ...]:
        """The command that runs it. `more` are keys behind those of the source."""
        return ("EVALSHA", self.sha, self.takes + len(more), *keys[: self.takes], *more, *arguments)


def _script(name: str, last: int = LATER_MESSAGES) -> Script:
    text = f"{_prelude}\n{(_folder / f'{name}.lua').read_text(encoding='utf-8')}"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), last + 1)


RENEW = _script("renew")
BROWSE = _script("browse", DISCARDED)
DEAD_LETTER = _script("dead_letter", DLQ)
DEPTH = _script("depth")
FINISH = _script("finish")
TAKE_OVER = _script("take_over")
KEEP = _script("keep")
LEAVE = _script("leave")
LOOK = _script("look")
MARK = _script("mark")
NEWS = _script("news")
OLDEST = _script("oldest")
POP = _script("pop")
READ_LISTED = _script("read_listed", SOURCE)
REMOVE = _script("remove", DISCARDED)
REPLAY = _script("replay", DISCARDED)
SEND_BACK = _script("send_back", COUNTERS)
SEND_BACK_ELSEWHERE = _script("send_back_elsewhere", SOURCE)
SEND_ELSEWHERE = _script("send_elsewhere", DISCARDED)
SUSPECT = _script("suspect")
TAKE = _script("take")
TAKE_LISTED = _script("take_listed", DISCARDED)
WHOLE = _script("whole", DLQ)
GIVE_BACK = _script("give_back")

BY_SHA = {script.sha: script for script in list(globals().values()) if isinstance(script, Script)}
