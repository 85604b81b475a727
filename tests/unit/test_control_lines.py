"""What do lines about flow control say where a fixed sentence would be wrong? All of them are shown in docs/outage.md."""

from unpoison.control.admission import TooManyDead
from unpoison.control.changes import BudgetUsedUp, Opened, OperatorPause, Paused, Resumed, Slowed
from unpoison.control.evidence import Evidence
from unpoison.reporting.control_lines import lines

EVIDENCE = Evidence("billing:443", 100.0, 10, ("ConnectionError: refused",))


def only(change, now=0.0):
    (line,) = lines("orders", [change], now)
    return line.text


def test_a_pause_that_comes_long_after_its_evidence_does_not_say_that_so_few_failed_in_all_that_time():
    assert "10 different messages failed, the first 30 min ago (ConnectionError: refused)." in only(Paused(EVIDENCE), 1_900.0)
    assert "10 different messages failed, the first 0.4 s ago" in only(Opened(EVIDENCE), 100.4)


def test_an_outage_that_pauses_the_source_at_once_is_told_once():
    told = lines("orders", [Opened(EVIDENCE), Paused(EVIDENCE)], 100.4)
    assert [line.event for line in told] == ["pause"]


def test_the_first_retry_that_is_put_off_is_told_in_the_singular():
    assert "not charged, 1 time since this was last logged." in only(BudgetUsedUp(1, 0.2))
    assert "not charged, 12,345 times since" in only(BudgetUsedUp(12_345, 0.2))


def fields(change, now=0.0):
    (line,) = lines("orders", [change], now)
    return line.fields


def test_a_throttle_has_its_evidence_as_data():
    assert fields(Slowed(EVIDENCE, 5.0), 101.5) == {
        "dependency": "billing:443",
        "messages": 10,
        "seconds": 1.5,
        "samples": ["ConnectionError: refused"],
        "wait": 5.0,
    }


def test_the_end_of_a_pause_says_what_it_was_and_how_long_it_lasted():
    outage = fields(Resumed(720.0, EVIDENCE), 900.0)
    assert (outage["reason"], outage["dependency"], outage["seconds"]) == ("outage", "billing:443", 720.0)
    letters = fields(Resumed(60.0, TooManyDead(0.0, 51, 60, 6.0, ("KeyError",)), True), 900.0)
    assert (letters["reason"], letters["dead"], letters["seconds"], letters["probation"]) == ("admission", 51, 60.0, True)
    assert fields(Resumed(60.0, OperatorPause("eva", "", 0.0)))["by"] == "eva"
