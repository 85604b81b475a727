import pytest

from unpoison.cli.demo.account import in_words, longest_gap, others_waited, usual_gap


@pytest.mark.parametrize(
    ("starts", "ends", "others", "outages", "until", "expected"),
    [
        pytest.param([1.0], [], [0.5, 1.2, 1.3], [], 9, 0.2, id="the next other one comes soon"),
        pytest.param([1.0], [2.0], [1.2, 1.3, 2.1], [], 9, 0.8, id="the longest pause until the first one after its end"),
        pytest.param([1.0], [2.0], [1.2, 1.3], [], 9, None, id="nobody came after it"),
        pytest.param([1.0], [2.0], [1.2, 2.1], [], 2, None, id="what came after it had not been in the line"),
        pytest.param([1.0, 3.0], [1.5, 3.5], [1.6, 3.9, 4.0], [], 9, 0.9, id="the worst of its starts"),
        pytest.param([1.0, 3.0], [1.5, 3.5], [1.6, 3.9], [3.2], 9, 0.6, id="a start cut short by another's kill is left out"),
        pytest.param([], [2.0], [1.2, 2.1], [], 9, None, id="never started"),
    ],
)
def test_how_long_others_waited(starts, ends, others, outages, until, expected):
    waited = others_waited(starts, ends, others, outages, until)
    assert waited is None if expected is None else waited == pytest.approx(expected)


def test_gaps():
    assert longest_gap([1, 2, 5, 6]) == 3
    assert longest_gap([1]) == 0
    assert usual_gap([1, 2, 3, 9]) == 1
    assert usual_gap([1]) is None


@pytest.mark.parametrize(("seconds", "words"), [(0, "0 ms"), (0.0123, "12 ms"), (0.9996, "1.0 s"), (3.21, "3.2 s")])
def test_durations_are_told_in_ms_or_s(seconds, words):
    assert in_words(seconds) == words
