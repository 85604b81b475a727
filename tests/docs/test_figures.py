"""Are the tables of docs/performance.md what was measured, and can a reader make sense of each by itself?"""

import re

import pytest

from bench.harness import docs, main, tables
from bench.harness.figures import Goal, Result, Row, Spread
from tests.docs.pages import ROOT

PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()


def result(ratio: Spread | None, rounds: int = 3) -> Result:
    rows = [
        Row("by hand", Spread(28_044, 27_122, 31_040), "messages/s", Spread(1, 1, 1)),
        Row("unpoison", Spread(29_005, 22_754, 30_013), "messages/s", ratio, goal=Goal("ratio", "≥", 0.95)),
    ]
    return Result("drain", "Draining", rows, rounds, 0, 1.0, "2026-11-15", "a machine")


def test_the_tables_are_what_was_measured():
    again = docs.written(PERFORMANCE, main.read(main.RESULTS))
    assert again == PERFORMANCE, "To write them anew: make bench ARGS='--no-run --write-docs'"


@pytest.mark.parametrize("page", ["performance.md", "peers.md"])
def test_our_goals_do_not_stand_in_pages_for_users(page):
    assert re.findall(r"\bgoals?\b|\bmissed\b", (ROOT / "docs" / page).read_text()) == []


def test_our_goals_are_shown_and_checked_where_we_work():
    shown = tables.terminal(result(Spread(0.9, 0.81, 1.07)))
    assert [column.header for column in shown.columns][-2:] == ["goal", "met"]
    assert "goal" not in tables.markdown(result(Spread(0.9, 0.81, 1.07)))


def test_a_ratio_that_looks_like_wrong_arithmetic_is_explained_below_its_table():
    """29,005 beside 28,044 and 0.97: each is a median, of other rounds."""
    assert "it need not be the quotient" in tables.footnote(result(Spread(0.97, 0.81, 1.07)))
    assert "quotient" not in tables.footnote(result(Spread(0.97, 0.97, 0.97)))
    for name, found in main.read(main.RESULTS).items():
        odd, baseline = [], None
        for row in [row for row in found.rows if row.ratio]:
            baseline = row if baseline is None or row.ratio == Spread(1, 1, 1) else baseline  # a table may have several
            if abs(row.figure.median / baseline.figure.median - row.ratio.median) > 0.005:
                odd.append(row.label)
        assert not odd or "it need not be the quotient" in tables.footnote(found), (name, odd)


def test_what_was_measured_once_says_so():
    assert tables.footnote(result(None, rounds=1)) == "Measured on 2026-11-15, once."
    assert "0 rounds" not in PERFORMANCE
