import pytest

from unpoison.reporting.report import in_words


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.00181, "0.01 s"), (0.0699, "0.07 s"), (0.1, "0.1 s"), (0.346, "0.35 s"), (1.54, "1.54 s"), (90, "90 s")],
)
def test_a_short_wait_is_said_without_digits_that_nobody_needs(seconds, said):
    assert in_words(seconds) == said
