"""Letters on their way through a real store."""

from unpoison.store.letters.sql_letters import letters_for


def moved(letters, folder, **how):
    """Letters of a DLQ, as a store gives them after they were taken from it."""
    store = letters_for(f"sqlite:///{folder}/moved.db")
    store.open()
    found = letters.whole(**how)
    known = store.count()
    assert store.put(found).new == len(found)
    ids = [each.letter.id for each in found]
    assert sorted(letters.remove(ids)) == sorted(ids)
    kept = [store.get(known + n).whole for n in range(1, len(found) + 1)]
    store.close()
    assert [each.letter.id for each in kept] == ids or not all(each.has_identity for each in found)
    return kept
