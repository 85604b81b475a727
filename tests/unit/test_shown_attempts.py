"""How earlier attempts are shown: what has changed from one to the next stands out."""

from unpoison.cli.screen import attempts
from unpoison.model.message import PastAttempt

REFUSED = ("transient", "ConnectionError: refused")


def test_what_is_the_same_is_not_repeated():
    first, *others = attempts(
        [
            PastAttempt(1, 1000.0, *REFUSED),
            PastAttempt(2, 1001.5, *REFUSED),
            PastAttempt(3, 1300.0, "bug", "KeyError: 'id'"),
            PastAttempt(1, 9000.0, "bug", "KeyError: 'id'"),
            PastAttempt(1, 9000.0, *REFUSED),
        ]
    )
    assert first.startswith("1  1970-01-01 ")
    assert first.endswith("  transient  ConnectionError: refused")
    assert others == [
        "2  1.5 s later  the same",
        "3  5 min later  bug  KeyError: 'id'",
        "1  replayed, 2 h later  the same",
        "1  0 s later  transient  ConnectionError: refused",
    ]


def test_no_byte_of_an_error_acts_on_the_terminal():
    (line,) = attempts([PastAttempt(1, 0.0, "bug", "\x1b[2J\nDead letter orders-1")])
    assert "\x1b" not in line
    assert "\n" not in line
