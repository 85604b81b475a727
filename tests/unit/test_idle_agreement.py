import pytest

from unpoison.flow.ending import IdleAgreement


class Source:
    """A consumer's view of its source."""

    def __init__(self, emptiness, *, is_empty=True):
        self.emptiness, self.is_empty, self.rung = emptiness, is_empty, 0

    def ring(self):
        self.rung += 1

    def agrees(self):
        return self.emptiness.agreed(self, self.ring, lambda: self.is_empty)


def test_one_empty_source_is_enough_where_there_is_one():
    assert Source(IdleAgreement()).agrees()
    assert not Source(IdleAgreement(), is_empty=False).agrees()


def test_a_run_is_over_once_all_have_seen_emptiness():
    emptiness = IdleAgreement(2)
    orders, emails = Source(emptiness), Source(emptiness)
    assert not emails.agrees()
    assert not emails.agrees()
    assert orders.agrees()
    assert emails.agrees()


def test_what_moved_after_a_look_makes_it_worthless_and_wakes_whoever_looked():
    emptiness = IdleAgreement(2)
    orders, emails = Source(emptiness), Source(emptiness)
    assert not emails.agrees()
    emptiness.moved()  # an order is handled, and its handler may have published to emails
    assert not orders.agrees()
    assert (emails.rung, orders.rung) == (1, 0)
    emails.is_empty = False
    assert not emails.agrees()
    emptiness.moved()
    emails.is_empty = True
    assert not emails.agrees()
    assert orders.agrees()


def test_what_moves_during_a_look_makes_it_worthless():
    emptiness = IdleAgreement(2)
    orders, emails = Source(emptiness), Source(emptiness)
    assert not orders.agrees()

    def looks():
        emptiness.moved()
        return True

    assert not emptiness.agreed(emails, emails.ring, looks)
    assert (emails.rung, orders.rung) == (1, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_message_passed_to_and_fro_is_never_taken_for_emptiness(first):
    emptiness = IdleAgreement(2)
    sources = [Source(emptiness), Source(emptiness)]
    holder = first
    for _ in range(6):
        sources[holder].is_empty, sources[1 - holder].is_empty = False, True
        assert not sources[1 - holder].agrees()
        assert not sources[holder].agrees()
        emptiness.moved()
        holder = 1 - holder


def test_what_moves_after_the_agreement_does_not_undo_it():
    """The first to agree ends and looks no more: the others would wait for it for ever."""
    emptiness = IdleAgreement(2)
    orders, emails = Source(emptiness), Source(emptiness)
    assert not orders.agrees()
    assert emails.agrees()
    assert orders.rung == 1
    emptiness.moved()  # one more order came, and was handled
    assert orders.agrees()
