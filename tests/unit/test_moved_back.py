"""Dead letters that a broker's own tool moved back start anew, with their history."""

import msgspec
import pytest

from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Counters, Message, PastAttempt
from unpoison.port.serialization import letter_within, restarted, tell

HISTORY = (PastAttempt(1, 1.0, "transient", "OSError: no"), PastAttempt(2, 2.0, "transient", "OSError: still no"))


def letter(classification="transient", **more):
    return DeadLetter(
        message=Message("a", "orders", b"{}"),
        attempts=5,
        classification=classification,
        rule="attempts used up",
        reason="attempts used up",
        error_type="OSError",
        error="still no",
        first_failed_at=1.0,
        last_failed_at=2.0,
        history=HISTORY,
        **more,
    )


def test_it_starts_with_the_counters_of_a_replay_and_the_history_of_the_letter():
    assert restarted(letter_within(letter(replays=2), 10_000)) == Counters(replays=3, history=HISTORY)


@pytest.mark.parametrize("classification", ["crash", "lost"])
def test_one_that_took_a_process_down_runs_alone(classification):
    found = restarted(letter_within(letter(classification), 10_000).decode())
    assert found == Counters(replays=1, vanished=1, alone=True, history=HISTORY)


@pytest.mark.parametrize("record", [None, "", "[1]", "{", "{}", b"\xff", {"classification": 3}, "[" * 100_000])
def test_a_record_that_cannot_be_read_still_gives_it_all_its_attempts(record):
    assert restarted(record, replays=1) == Counters(replays=2)
    assert restarted(record, replays=2**31 - 1) == Counters(replays=2**31 - 1)


def test_a_history_that_somebody_made_longer_is_cut():
    long = tuple(PastAttempt(n, 1.0, "bug", "x") for n in range(500))
    assert restarted({"history": long} | {k: v for k, v in _fields().items() if k != "history"}).history == long[-20:]


def _fields():
    return msgspec.json.decode(letter_within(letter(), 10_000))


def test_many_are_told_in_one_line(caplog):
    caplog.set_level("INFO")
    tell("orders", 1_200)
    (record,) = caplog.records
    assert record.getMessage().startswith("Source 'orders': another tool moved 1,200 dead letters back")
    assert (record.event, record.source, record.count) == ("moved-back", "orders", 1_200)
