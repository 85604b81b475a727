"""Does docs/metrics.md name each metric, with its labels and the values that these can have?"""

import re

import pytest

from tests.docs.pages import ROOT
from unpoison.model.verdict import ErrorClassification
from unpoison.observing.counts import MOST_DEPENDENCIES
from unpoison.observing.families import FAMILIES
from unpoison.observing.look import PAUSES
from unpoison.observing.polling import EVERY
from unpoison.reporting.numbers import WorkerEnd

PAGE = (ROOT / "docs" / "metrics.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))


def test_every_metric_of_a_source_is_there_with_its_labels():
    for family in FAMILIES:
        expected = ["queue", family.label] if family.label else ["queue"]
        assert ROWS.get(family.name, "").split(", ") == expected, family.name


def test_no_row_is_about_a_metric_that_is_not_there():
    others = {"unpoison_handler_seconds", "unpoison_store_up", "unpoison_info"}
    assert set(ROWS) == {family.name for family in FAMILIES} | others


@pytest.mark.parametrize("value", [*ErrorClassification, *WorkerEnd, *PAUSES])
def test_every_value_of_a_label_is_explained(value):
    assert re.search(rf"\b{value}\b", PAGE)


def test_the_limits_are_the_ones_of_the_code():
    assert f"Only the first {MOST_DEPENDENCIES} of each source" in PAGE
    assert f"every {EVERY:g} seconds" in PAGE


def test_queries_name_metrics_that_are_there():
    queries = "\n".join(re.findall(r"```promql\n(.*?)```", PAGE, re.DOTALL))
    named = re.findall(r"\b(?:unpoison|poison|message|dlq)_\w+", queries)
    assert named
    assert {name.removesuffix("_bucket") for name in named} <= set(ROWS)
