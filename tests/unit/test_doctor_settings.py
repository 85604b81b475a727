"""Which settings of an app does the doctor speak of, and which are in order?"""

import math

import pytest

from unpoison import App
from unpoison.app_internals import consumers_of
from unpoison.cli.doctor import NAMES, findings_of, longest_of

CASES = {
    "endless-retry": ({"max_attempts": None, "max_age": None}, {"max_attempts": 5, "max_age": 86400}),
    "no-age-limit": ({"max_age": None}, {"max_age": 86400}),
    "no-time-limit": ({"timeout": None, "isolation": "thread"}, {"timeout": 20, "isolation": "thread"}),
    "grace-too-short": ({"timeout": 60}, {"timeout": 20}),
}


def examined(**options):
    app = App("sqlite:///shop.db", grace=25)
    app.consumer("orders", **options)(lambda payload: None)
    consumers = [registration.options for registration in consumers_of(app).values()]
    return list(findings_of(app.settings, consumers)), longest_of(consumers)


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_found_by_its_name_and_gone_once_mended(name):
    broken, mended = CASES[name]
    [finding] = examined(**broken)[0]
    assert (finding.name, finding.loses) == (name, name == "endless-retry")
    assert "'orders'" in finding.problem
    assert examined(**mended)[0] == []


def test_an_app_that_says_nothing_is_in_order():
    assert examined() == ([], 300.0)


def test_retries_without_a_limit_that_end_one_day_are_in_order():
    assert examined(max_attempts=None)[0] == []


def test_a_handler_without_a_limit_may_run_for_ever():
    assert examined(timeout=None)[1] == math.inf
    assert longest_of([]) is None


def test_advice_fits_the_isolation():
    assert "isolation='process'" in examined(timeout=None, isolation="thread")[0][0].fix
    assert "isolation" not in examined(timeout=None, isolation="process")[0][0].fix
