"""How are several byte strings one?

As netstrings, `3:abc2:de`: any bytes, readable by a person, and simple enough to be read and written by the scripts too.
"""

from collections.abc import Iterable


def packed(texts: Iterable[bytes]) -> bytes:
    return b"".join([b"%d:%b" % (len(text), text) for text in texts])


def unpacked(blob: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(blob):
        colon = blob.index(b":", at)
        end = colon + 1 + int(blob[at:colon])
        found.append(blob[colon + 1 : end])
        at = end
    return found
