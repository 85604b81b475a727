"""The keys by which originals are encrypted and values can be searched for, from the environment.

`UNPOISON_KEY` has one key of 32 bytes in base64, or several with commas between them: the first one encrypts, all decrypt. A key
is called by an id that is made of it and says nothing about it. What encrypts and what hashes are different keys, made of it.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from unpoison.errors import ConfigError, MissingExtra, OriginalUnavailable

VARIABLE = "UNPOISON_KEY"
MAKE = "openssl rand -base64 32"
_FORM = b"\1"
"""Stands before what is encrypted: a later form would have another one."""
_NONCE, _BYTES = 12, 32


class Key:
    """One key."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = self._derived(b"unpoison key id")[:4].hex()

    def _derived(self, purpose: bytes) -> bytes:
        """HKDF-Expand with one block: the secret is random already."""
        return hmac.digest(self._secret, purpose + b"\1", hashlib.sha256)

    def __repr__(self) -> str:
        return f"Key({self.id})"

    @cached_property
    def _cipher(self) -> Any:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise MissingExtra("Encryption of redacted letters", "cryptography", "encryption") from error
        return AESGCM(self._derived(b"unpoison originals"))

    @cached_property
    def _hashing(self) -> bytes:
        return self._derived(b"unpoison search")

    def check_library(self) -> None:
        """Raise MissingExtra if nothing can be encrypted here."""
        assert self._cipher is not None  # noqa: S101 - making it imports the package

    def sealed(self, data: bytes, about: bytes) -> bytes:
        """Encrypted, so that nobody can change it, or have it taken for what is kept `about` another letter."""
        nonce = os.urandom(_NONCE)
        return _FORM + nonce + bytes(self._cipher.encrypt(nonce, data, about))

    def opened(self, sealed: bytes, about: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        try:
            if sealed[:1] != _FORM or len(sealed) <= _NONCE:
                raise InvalidTag
            return bytes(self._cipher.decrypt(sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :], about))
        except InvalidTag:
            raise OriginalUnavailable(
                f"What is kept of it was changed after it was encrypted with key {self.id}, or is damaged. Nobody can read it "
                f"any more: restore the store from a backup, or discard the letter."
            ) from None

    def token(self, purpose: str, value: str) -> str:
        """A keyed hash: equal for equal values, and without the key nobody can tell of which."""
        data = f"{len(purpose)}:{purpose}{value}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._hashing, data, hashlib.sha256)[:16].hex()


class Keys:
    """The keys of this process: the first one encrypts."""

    def __init__(self, keys: tuple[Key, ...] = ()) -> None:
        self.all = keys
        self._by_id = {key.id: key for key in keys}

    @property
    def first(self) -> Key | None:
        return self.all[0] if self.all else None

    @property
    def ids(self) -> list[str]:
        return list(self._by_id)

    def of(self, key_id: str) -> Key:
        """The key with this id. Raises OriginalUnavailable if it is not here."""
        if key_id not in self._by_id:
            have = f"{VARIABLE} has {', '.join(self.ids)}" if self.ids else f"{VARIABLE} is not set"
            raise OriginalUnavailable(
                f"It is encrypted with key {key_id}, and {have}. Add that key, with a comma behind the others, and try again."
            )
        return self._by_id[key_id]


def keys_from(environment: Mapping[str, str] = os.environ) -> Keys:
    """Raises ConfigError if one of them is none. No text of a key is in an error."""
    texts = [text.strip() for text in environment.get(VARIABLE, "").split(",")]
    return Keys(tuple(_key(text, number, len(texts)) for number, text in enumerate(texts, 1) if text))


def _key(text: str, number: int, count: int) -> Key:
    which = f"Key {number} in {VARIABLE}" if count > 1 else VARIABLE
    try:
        secret = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{which} is not written in base64. Make one with: {MAKE}") from None
    if len(secret) != _BYTES:
        raise ConfigError(f"{which} has {len(secret)} bytes and needs {_BYTES}. Make one with: {MAKE}")
    return Key(secret)
