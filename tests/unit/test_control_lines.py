"""What do lines about flow control say where a fixed sentence would be wrong? All of them are shown in docs/outage.md."""

from unpoison.control.changes import BudgetUsedUp, Opened, Paused
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
