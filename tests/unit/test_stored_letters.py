"""A dead letter is cut until it fits into a header: its end of the traceback and the start of its error stay longest."""

import msgspec
import pytest

from unpoison.model.message import Delivery
from unpoison.port.serialization import letter_within
from unpoison.testing import given


def long_letter():
    letter = given.letter_of(Delivery(1, "orders", "id", b"{}"))
    return msgspec.structs.replace(
        letter, error="e" * 50_000, traceback="t" * 50_000 + "end", reason="r" * 50_000, rule="u" * 50_000
    )


@pytest.mark.parametrize("most", [30_000, 10_000, 2_000])
def test_a_long_letter_is_cut_until_it_fits(most):
    data = letter_within(long_letter(), most)
    assert len(data) <= most
    told = msgspec.json.decode(data)
    assert told["traceback"].endswith("end")
    assert told["error"].startswith("e")


def test_what_fits_is_told_in_full():
    told = msgspec.json.decode(letter_within(long_letter(), 1_000_000))
    assert len(told["error"]) == len(told["reason"]) == 50_000
    assert not {"message", "id", "state"} & told.keys()
