"""How do tests move dead letters out of a DLQ, as a collector does?"""

from pathlib import Path

from unpoison.model.dead_letter import WholeLetter
from unpoison.port.broker import DeadLetters, one_look
from unpoison.store.letters.sql_letters import letters_for
from unpoison.store.letters.values import Order


def moved_into_a_store(folder: Path, letters: DeadLetters) -> list[WholeLetter]:
    """All letters, in their order, as a store gives them once their DLQ does not have them any more."""
    store = letters_for(f"sqlite:///{folder}/letters.db")
    store.open()
    with one_look(letters):
        found = letters.whole(limit=1_000)
        assert store.put(found).new == len(found)
        ids = [each.letter.id for each in found]
        assert sorted(letters.remove(ids)) == sorted(ids)
    assert letters.count() == 0
    kept = store.page(order=Order.ARRIVAL, is_descending=False, limit=1_000).letters
    whole = [each.whole for found in kept for each in store.find(found.letter.id)]
    store.close()
    return whole[-len(found) :]
