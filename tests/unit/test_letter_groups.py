"""Letters of one fingerprint are one group."""

import io

import pytest
from rich.console import Console

from tests.unit.filtering import NOW, letter
from unpoison.cli.screen import group_table
from unpoison.model.letter_group import grouped

LETTERS = [
    letter(id="orders-1", fingerprint="aa", error="'first'", first_failed_at=NOW - 100, last_failed_at=NOW - 50),
    letter(id="emails-2", fingerprint="aa", error="'last'", source="emails", classification="bug", last_failed_at=NOW - 7),
    letter(id="orders-3", fingerprint="bb", last_failed_at=NOW - 9),
    letter(id="orders-4", fingerprint="aa", error="'middle'", last_failed_at=NOW - 20),
    letter(id="orders-5", fingerprint="cc", last_failed_at=NOW - 3),
    letter(id="orders-6", fingerprint="", last_failed_at=NOW - 80),
]


def test_a_group_counts_its_letters_and_shows_the_one_that_failed_last():
    first, *others = grouped(LETTERS)
    assert first.as_json() == {
        "group": "aa",
        "count": 3,
        "sources": {"orders": 2, "emails": 1},
        "classification": "bug",
        "error_type": "KeyError",
        "error": "'last'",
        "first_failed_at": "2027-01-15T07:58:20.000+00:00",
        "last_failed_at": "2027-01-15T07:59:53.000+00:00",
        "example": "emails-2",
    }
    assert [group.fingerprint for group in others] == ["cc", "bb", ""]
    assert grouped([]) == []


@pytest.mark.parametrize(
    ("columns", "heading"),
    [
        (120, ["GROUP", "COUNT", "LAST", "FIRST", "SOURCES", "CLASSIFICATION", "ERROR"]),
        (80, ["GROUP", "COUNT", "LAST", "FIRST", "CLASS", "ERROR"]),
        (60, ["GROUP", "COUNT", "LAST", "CLASS", "ERROR"]),
        (30, ["aa", "3"]),
    ],
)
def test_the_table_keeps_to_the_width_of_a_terminal_and_always_shows_the_error(columns, heading):
    written = io.StringIO()
    screen = Console(file=written, width=columns, markup=False, emoji=False, highlight=False)
    long = [letter(fingerprint="aa", error="x" * 300, classification="transient") for _ in range(3)]
    screen.print(group_table(grouped(long), columns, now=NOW))
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == heading
    assert "KeyError: xxx" in lines[1]
