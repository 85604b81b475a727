"""Letters are redacted before they are written, by the rules of the store and those of the process that writes.

Everything that enters the store comes through here: from collectors, commands and files. The rules are asked for again in each
transaction that writes letters, so none is written by fewer rules than another process has added by then.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from unpoison.errors import ConfigError
from unpoison.filters.terms import Term
from unpoison.model.dead_letter import ENCRYPTED, WholeLetter
from unpoison.redaction.keys import Key, Keys
from unpoison.redaction.redactor import Redactor
from unpoison.redaction.rules import Redact
from unpoison.store.letters import audit, originals, redacted_search, rules_in_force
from unpoison.store.letters.people import operator
from unpoison.store.letters.rules_in_force import InForce, RulesChanged
from unpoison.store.letters.turns import take_turn
from unpoison.store.letters.values import StoredLetter
from unpoison.store.rows import Execute
from unpoison.store.sql_store import LetterDatabase

REVEALED = "revealed"
Result = TypeVar("Result")


class Redacting:
    """The redaction of one store, as one process sees it."""

    def __init__(self, database: LetterDatabase, given: Sequence[Redact], keys: Keys) -> None:
        self._database, self._given, self.keys = database, tuple(given), keys
        self._in_force = InForce()
        self._redactor = Redactor((), None)
        self._noted: Key | None = None
        """The key of which the store knows for certain that it is used."""

    @property
    def in_force(self) -> InForce:
        return self._in_force

    def read(self) -> None:
        """Learn the rules of the store, and add those of this process."""
        with self._database.reading() as run:
            found = rules_in_force.read(run)
        if not set(self._given) <= set(found.rules):
            with self._database.writing() as run:
                take_turn(run)
                found = rules_in_force.join(run, self._given, operator(), self._database.now(run))
        self._in_force, self._redactor = found, Redactor(found.rules, self.keys.first)

    def writing(self, write: Callable[[Callable[[WholeLetter], WholeLetter], Callable[[Execute], None]], Result]) -> Result:
        """Write letters, by the rules of the moment. If these have changed, `write` is called again: what it has written is
        known then."""
        while True:
            rules_in_force.check_keys(self._in_force, self.keys)
            try:
                done = write(self._redacted, self._may)
            except RulesChanged:
                self.read()
            else:
                self._noted = self._encrypts_with
                return done

    def why_not(self) -> str:
        """Why this process can write no letters: it has not the key that the rules need. Empty if it can."""
        try:
            rules_in_force.check_keys(self._in_force, self.keys)
        except ConfigError as error:
            return str(error)
        return ""

    def _redacted(self, whole: WholeLetter) -> WholeLetter:
        return originals.redacted(whole, self._redactor, self.keys.first) if self._in_force.rules else whole

    def _may(self, run: Execute) -> None:
        rules_in_force.check(run, self._in_force.revision)
        if (key := self._encrypts_with) is not None and key is not self._noted:
            rules_in_force.use(run, key.id, self.keys.ids)

    @property
    def _encrypts_with(self) -> Key | None:
        return self.keys.first if self._in_force.needs_key else None

    def remove(self, rules: Sequence[Redact], by: str) -> InForce:
        with self._database.writing() as run:
            take_turn(run)
            rules_in_force.remove(run, rules, by, self._database.now(run))
        self.read()
        return self._in_force

    # Originals

    def original(self, stored: StoredLetter) -> WholeLetter:
        """The letter as it was. Raises OriginalUnavailable if it is not kept or cannot be read here."""
        redaction = stored.letter.redaction
        is_encrypted = redaction is not None and redaction.original == ENCRYPTED
        whole = originals.opened(stored, self.sealed(stored).sealed if is_encrypted else None, self.keys)
        return msgspec.structs.replace(whole, letter=msgspec.structs.replace(whole.letter, replays=stored.letter.replays))

    def sealed(self, stored: StoredLetter) -> StoredLetter:
        """The letter with its encrypted original."""
        if stored.letter.redaction is None:
            return stored
        with self._database.reading() as run:
            return msgspec.structs.replace(stored, sealed=originals.sealed_of(run, stored.number))

    def note_revealed(self, about: str, count: int, by: str, reason: str) -> None:
        """On disk before anything is shown."""
        if not reason.strip():
            raise ConfigError("Say why the original has to be seen: the audit log keeps it, --reason TEXT.")
        with self._database.writing() as run:
            take_turn(run)
            now = self._database.now(run)
            audit.note(run, now, who=by, what=REVEALED, about=about, before=[], after=reason.strip(), letters=count)

    def originals_by_key(self) -> Mapping[str, int]:
        """How many originals are encrypted with each key that was used in this store. Goes through all of them."""
        query = """select count(*) from unpoison_letter_originals o join unpoison_letter_contents c on c.no = o.no
            where c.record like ?"""
        with self._database.reading() as run:
            return {id_: int(run(query, (f'%"key":"{id_}"%',)).fetchall()[0][0]) for id_ in rules_in_force.read(run).key_ids}

    # Filters

    def found_by_hash(self, term: Term | None) -> Term | None:
        """The filter, with keyed hashes beside the values that are redacted."""
        return term if term is None else redacted_search.with_tokens(term, self._redactor.rules, self.keys)

    def told(self, term: Term) -> Term:
        """The filter as it may stand in the audit log: without values that are redacted."""
        return redacted_search.without_values(term, self._redactor) if self._in_force.rules else term
