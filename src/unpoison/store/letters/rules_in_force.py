"""Which rules for redaction does a store have, and which keys have been used in it?

Rules only become more by themselves: whoever writes letters adds its own and applies all that there are, so that a consumer which
was started without a rule cannot undo it for the others. To take one away is something that a person does, and the audit log has
it. No key is kept, only ids.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from unpoison.errors import ConfigError
from unpoison.redaction.keys import MAKE, VARIABLE, Keys, keys_from
from unpoison.redaction.rules import Redact, rules_from
from unpoison.store.letters import audit
from unpoison.store.rows import Execute

RULES = "redaction rules"
_READ = "select rules, keys, revision from unpoison_redaction"


class InForce(NamedTuple):
    """The rules of a store, and the ids of keys that were used in it. `revision` is another one after each change."""

    rules: tuple[Redact, ...] = ()
    key_ids: tuple[str, ...] = ()
    revision: int = 0

    @property
    def needs_key(self) -> bool:
        return any(rule.action == "encrypt" or rule.searchable for rule in self.rules)


class RulesChanged(Exception):
    """The store has other rules by now than those that were applied."""


def read(run: Execute) -> InForce:
    """Raises ConfigError if what is there cannot be read: then nothing can be stored as it has to be."""
    rules, key_ids, revision = run(_READ, ()).fetchall()[0]
    try:
        return InForce(rules_from(json.loads(rules)), tuple(json.loads(key_ids)), int(revision))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"The rules for redaction in this store are damaged ({error}): somebody has changed the table unpoison_redaction. "
            f"Restore its row from a backup."
        ) from None


def check(run: Execute, revision: int) -> None:
    """Raise RulesChanged if these are not the rules any more. Asked in the transaction that writes letters."""
    if int(run(_READ, ()).fetchall()[0][2]) != revision:
        raise RulesChanged


def join(run: Execute, given: Sequence[Redact], by: str, now: float) -> InForce:
    """Add these rules to those that there are. Only to be called by whose turn it is."""
    known = read(run)
    more = [rule for rule in given if rule not in known.rules]
    return _write(run, known, (*known.rules, *more), by, now) if more else known


def remove(run: Execute, rules: Sequence[Redact], by: str, now: float) -> InForce:
    """Take these rules away."""
    known = read(run)
    left = tuple(rule for rule in known.rules if rule not in rules)
    return _write(run, known, left, by, now) if left != known.rules else known


def use(run: Execute, key_id: str, ours: Sequence[str]) -> None:
    """Note that this key is used. Raises RulesChanged if another process has used another one meanwhile, which is not ours."""
    known = read(run)
    if known.key_ids and not set(known.key_ids) & set(ours):
        raise RulesChanged
    if key_id not in known.key_ids:
        run("update unpoison_redaction set keys = ?", (json.dumps([*known.key_ids, key_id]),))


def check_keys(in_force: InForce, keys: Keys) -> None:
    """Raise ConfigError if letters cannot be stored as the rules want it with these keys."""
    if not in_force.needs_key:
        return
    if keys.first is None:
        raise ConfigError(missing_key(next(rule for rule in in_force.rules if rule.action == "encrypt" or rule.searchable)))
    if in_force.key_ids and not set(in_force.key_ids) & set(keys.ids):
        raise ConfigError(
            f"{VARIABLE} has key {', '.join(keys.ids)}, and letters in this store are encrypted with "
            f"{', '.join(in_force.key_ids)}. If that is a mistake, set the right key. To go over to a new one, "
            f"set both: {VARIABLE}=NEW,OLD"
        )


def check_redacts(given: Sequence[str]) -> None:
    """Raise ConfigError if a process with these rules could store no letter: before it starts, not when the first one comes."""
    keys = keys_from()  # one that cannot be read is an error even if nothing needs it
    wanted = InForce(rules_from(given))
    check_keys(wanted, keys)
    if wanted.needs_key and keys.first is not None:
        keys.first.check_library()


def missing_key(rule: Redact) -> str:
    return (
        f"The rule {str(rule)!r} keeps originals encrypted and {VARIABLE} is not set, so no letter is stored. Make a key with "
        f"{MAKE}, keep it safe, and set it for every process that collects or replays. Without a key there are only rules "
        f"of which nothing is kept, and their letters cannot be replayed: 'drop {rule.path}'"
    )


def _write(run: Execute, known: InForce, rules: tuple[Redact, ...], by: str, now: float) -> InForce:
    changed = known._replace(rules=rules, revision=known.revision + 1)
    run("update unpoison_redaction set rules = ?, revision = ?", (json.dumps(list(map(str, rules))), changed.revision))
    before: list[Any] = [["rules", list(map(str, known.rules))]]
    audit.note(run, now, who=by, what=RULES, about="", before=before, after=[["rules", list(map(str, rules))]])
    return changed
