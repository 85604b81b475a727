"""How do the tests of redaction make keys and letters, and look into the files of a store?"""

import base64
from pathlib import Path

from tests.unit.filtering import letter
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.failure import Crash
from unpoison.model.message import PastAttempt
from unpoison.redaction.keys import Key, Keys
from unpoison.redaction.redactor import Redactor
from unpoison.redaction.rules import rules_from
from unpoison.store.letters.sql_letters import letters_for

OLD, NEW = (base64.b64encode(bytes([number] * 32)).decode() for number in (1, 2))
CANARY = "canary-7f3e91@example.org"
OTHER = "Bearer c4n4ry-t0ken-55aa"


def key(text: str = OLD) -> Key:
    return Key(base64.b64decode(text))


def keys(*texts: str) -> Keys:
    return Keys(tuple(map(key, texts or (OLD,))))


def redactor(*rules: str) -> Redactor:
    return Redactor(rules_from(rules), key())


def quoting(body: bytes, **facts: object) -> DeadLetter:
    """A letter whose failure quotes the canary everywhere that it can."""
    usual = {
        "body": body,
        "key": CANARY,
        "headers": {"Authorization": OTHER, "tenant": "acme"},
        "error": f"no customer '{CANARY}' in {body[:200]!r}",
        "reason": f"permanent: {CANARY}",
        "traceback": f'Traceback (most recent call last):\n  File "/srv/shop.py", line 7, in ship\nKeyError: {CANARY.upper()}\n',
        "history": (PastAttempt(1, 1.0, "transient", f"GET /customers/{CANARY.replace('@', '%40')} → 500"),),
        "crash": Crash(log=f"shipping to {CANARY}", stack=f"frame {CANARY}"),
        "original": {"queue": f"for-{CANARY}", "count": 1},
        "note": f"ask {CANARY}",
    }
    return letter(**usual | facts)


def whole(body: bytes, native: bytes | None = None, **facts: object) -> WholeLetter:
    headers = (("authorization", OTHER.encode()), ("tenant", b"acme")) if native is not None else ()
    return WholeLetter(letter=quoting(body, **facts), headers=headers, native=native)


def store_at(url: str, monkeypatch, *rules: str, key: str | None = OLD):
    """A store as a process with these rules and keys opens it."""
    if key is None:
        monkeypatch.delenv("UNPOISON_KEY", raising=False)
    else:
        monkeypatch.setenv("UNPOISON_KEY", key)
    store = letters_for(url, rules)
    store.open()
    return store


def bytes_of(folder: Path) -> bytes:
    """Everything in the files of a folder, the write-ahead log too."""
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())
