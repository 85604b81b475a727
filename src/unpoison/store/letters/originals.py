"""How is the original of a redacted letter kept, and how does it come back?

It is kept as the row that it would have had, compressed and encrypted, in a table of its own. What is encrypted is bound to the
letter: nobody who can write to the database can give one letter the original of another.
"""

import json
import zlib
from typing import Any

import msgspec

from unpoison.errors import OriginalUnavailable
from unpoison.model.dead_letter import DROPPED, ENCRYPTED, DeadLetter, Redaction, WholeLetter
from unpoison.redaction.keys import Key, Keys
from unpoison.redaction.redactor import Redactor
from unpoison.store.letters.columns import as_column, moment, whole
from unpoison.store.letters.rows import digest_of, packed_row, prepared, unpacked_row
from unpoison.store.letters.values import StoredLetter
from unpoison.store.rows import Execute

_KEPT_OF_STORE = ("id", "state", "note", "owner")
"""What a letter is in the store, whatever it was before."""


def redacted(each: WholeLetter, redactor: Redactor, key: Key | None) -> WholeLetter:
    """The letter as it is stored: without what the rules name, and with its original encrypted if it is kept."""
    found = redactor.redacted(each)
    known = each.letter.redaction
    beside = each.native is not None or bool(each.headers)
    if not found.is_changed and (known is not None or not beside or (key is None and not redactor.rules)):
        return each
    rules = tuple(dict.fromkeys((*(known.rules if known else ()), *found.hits)))
    if found.drops or (known is not None and each.sealed is None):
        redaction, sealed = Redaction(rules), None
    elif known is not None:
        redaction, sealed = Redaction(rules, ENCRYPTED, known.key), each.sealed
    elif key is None:
        redaction, sealed = Redaction(rules), None
    else:
        redaction = Redaction(rules, ENCRYPTED, key.id)
        sealed = key.sealed(zlib.compress(packed_row(prepared(each)), 1), _about(found.whole.letter, each.place))
    if key is not None and not each.has_identity and known is None:
        redaction = msgspec.structs.replace(
            redaction, digest=key.token("digest", digest_of(each.letter.message, each.place).hex())
        )
    cleared = msgspec.structs.replace(found.whole, headers=(), native=None, sealed=sealed)
    return msgspec.structs.replace(cleared, letter=msgspec.structs.replace(cleared.letter, redaction=redaction))


def opened(stored: StoredLetter, sealed: bytes | None, keys: Keys) -> WholeLetter:
    """The letter as it was. Raises OriginalUnavailable, with a text for people, if it is not kept or cannot be read here."""
    redaction = stored.letter.redaction
    if redaction is None:
        return stored.whole
    if redaction.original == DROPPED or redaction.key is None:
        raise OriginalUnavailable(why_dropped(redaction))
    if sealed is None:
        raise OriginalUnavailable("Its encrypted original is not in the store any more: somebody has deleted it there.")
    data = keys.of(redaction.key).opened(sealed, _about(stored.letter, stored.place))
    try:
        found = unpacked_row(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError, ValueError, TypeError) as error:
        raise OriginalUnavailable(f"Its original was written by another version of unpoison: {error!r}. Upgrade it.") from None
    kept: dict[str, Any] = {name: getattr(stored.letter, name) for name in _KEPT_OF_STORE}
    return WholeLetter(
        letter=msgspec.structs.replace(found.letter, redaction=None, **kept),
        place=stored.place,
        headers=found.headers,
        native=found.native,
    )


def why_dropped(redaction: Redaction) -> str:
    named = ", ".join(redaction.rules)
    if named:
        return f"Its original is not kept: a rule of which nothing is kept has found something in it ({named})."
    return "Its original is not kept: there was no key to encrypt what the broker knew beside its body."


def _about(letter: DeadLetter, place: str) -> bytes:
    """What of a letter never changes, and is not redacted."""
    times = [repr(moment(time)) for time in (letter.first_failed_at, letter.last_failed_at)]
    return json.dumps([as_column(letter.source), as_column(place), *times, whole(letter.replays)]).encode()


def sealed_of(run: Execute, number: int) -> bytes | None:
    found = run("select sealed from unpoison_letter_originals where no = ?", (number,)).fetchall()
    return bytes(found[0][0]) if found else None
