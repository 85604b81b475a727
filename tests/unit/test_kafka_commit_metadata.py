"""What is written into the metadata of a committed offset is read back, and always fits."""

from hypothesis import given
from hypothesis import strategies as st

from unpoison.brokers.kafka import commit_metadata
from unpoison.brokers.kafka.commit_metadata import Start

LETTERS = st.lists(st.sampled_from(".abcABC"), max_size=300)


@given(first=st.integers(0, 2**40), letters=LETTERS)
def test_what_was_written_is_read(first, letters):
    known = [(first + index, letter) for index, letter in enumerate(letters) if letter != commit_metadata.DONE]
    state = commit_metadata.decode(first, commit_metadata.encode(first, known, first + len(letters)))
    assert state.top == first + len(letters)
    assert state.losses == {offset: "abc".index(letter.lower()) for offset, letter in known}
    assert state.started == {offset for offset, letter in known if letter.isupper()}


def test_equal_neighbours_are_told_together():
    assert commit_metadata.encode(120, [(120, "A"), (124, "A"), (125, "A")], 126) == "unpoison/1 A3.2A"


def test_what_does_not_fit_may_be_repeated_and_is_never_lost():
    known = [(offset, "B" if offset == 9_000 else "A") for offset in range(0, 20_000, 2)]
    text = commit_metadata.encode(0, known, 20_000)
    state = commit_metadata.decode(0, text)
    assert len(text) <= commit_metadata.LONGEST
    assert state.losses.keys() >= {offset for offset, _ in known}
    assert state.losses[9_000] == 1
    assert state.top == 20_000


def test_starts_travel_along():
    starts = {7: [Start("host-1", 12.5), Start("host-2", 13.0)]}
    assert commit_metadata.decode(7, commit_metadata.encode(7, [(7, "A")], 8, starts)).starts == starts


def test_a_text_of_somebody_else_says_nothing():
    for foreign in (None, "", "\0", "consumer-3", '{"a": 1}'):
        assert commit_metadata.decode(5, foreign) == commit_metadata.CommittedState({}, set(), 5, {})


def test_the_end_that_the_client_adds_is_taken_off():
    assert commit_metadata.decode(5, "unpoison/1 2A\0").top == 7
