"""What adapters write beside a message is read back, whatever another program has put in its place."""

import msgspec
import pytest

from unpoison.model.message import UNTRIED, Counters, Delivery, Message, PastAttempt
from unpoison.port.serialization import (
    LETTER,
    counters_or_untried,
    counters_text,
    foreign_letter,
    letter_headers,
    letter_of,
    read_letter,
    restarted,
)
from unpoison.testing import given

PAST = tuple(PastAttempt(number, 1.0, "transient", "e" * 100) for number in range(1, 20))


def test_counters_are_one_text_that_says_only_what_there_is_to_say():
    assert counters_text(UNTRIED) is None
    assert counters_text(Counters(attempts=2, alone=True)) == '{"attempts":2,"alone":true}'
    assert counters_or_untried(counters_text(Counters(attempts=2, history=PAST))) == Counters(attempts=2, history=PAST)


def test_of_a_history_that_is_too_long_the_end_is_kept():
    text = counters_text(Counters(attempts=19, history=PAST), 1_000)
    assert len(text) <= 1_000
    found = counters_or_untried(text)
    assert (found.attempts, found.history[-1]) == (19, PAST[-1])
    assert counters_or_untried(counters_text(Counters(attempts=19, history=PAST), 10)) == Counters(attempts=19)


@pytest.mark.parametrize(
    "found", ["{", b"\xff", "[]", '{"attempts":-1}', '{"attempts":1e99}', "[" * 5_000, {"losses": "x"}, {}, None]
)
def test_counters_of_another_program_count_nothing(found):
    assert counters_or_untried(found) == UNTRIED


def test_counters_can_be_part_of_a_larger_json_text():
    assert counters_or_untried({"attempts": 3}) == Counters(attempts=3)


def test_a_letter_is_told_in_headers_of_one_line_and_read_from_its_record():
    letter = msgspec.structs.replace(given.letter_of(Delivery(1, "orders", "id", b"{}")), error="first\nsecond" + "x" * 1_000)
    headers = letter_headers(letter, 32 * 1024)
    assert headers["x-unpoison-source"] == "orders"
    assert "\n" not in headers["x-unpoison-error"]
    assert len(headers["x-unpoison-error"]) <= 500
    message = Message("id", "orders", b"{}")
    found = letter_of(headers[LETTER], message, pytest.fail, id_="orders-7", state="dead")
    assert found == msgspec.structs.replace(letter, id="orders-7", message=message)
    assert read_letter(msgspec.json.decode(headers[LETTER]), "orders").error == letter.error


@pytest.mark.parametrize("record", [None, "", b"{", "[]", "{}", {"attempts": "x"}])
def test_what_is_no_record_of_ours_is_told_otherwise(record):
    message = Message("id", "orders", b"{}")
    counters = Counters(attempts=2, first_failed_at=5.0, replays=1)
    found = letter_of(
        record, message, lambda: foreign_letter(message, "the server", "x.Unknown", 9.0, counters), id_="a", state="dead"
    )
    assert (found.id, found.rule, found.attempts, found.replays) == ("a", "the server", 2, 1)
    assert (found.first_failed_at, found.last_failed_at) == (5.0, 9.0)
    assert read_letter(record) is None


def test_a_letter_that_cannot_be_told_otherwise_is_shown_as_far_as_it_goes():
    def fails():
        raise ValueError("odd")

    found = letter_of(None, Message("id", "orders", b"{}"), fails, id_="a", state="discarded")
    assert (found.id, found.state, found.body) == ("a", "discarded", b"{}")
    assert "odd" in found.error


def test_letters_of_one_kind_from_another_program_are_grouped():
    message = Message("id", "orders", b"{}")

    def found(rule, kind):
        return letter_of(None, message, lambda: foreign_letter(message, rule, kind, 0.0), id_="a", state="dead").fingerprint

    assert found("received once", "sqs.Redriven") == found("received 2 times", "sqs.Redriven") != found("r", "nats.Unknown")


def test_a_letter_that_was_moved_back_starts_as_a_replay_with_its_history():
    letter = msgspec.structs.replace(given.letter_of(Delivery(1, "orders", "id", b"{}")), history=PAST, replays=2)
    found = restarted(letter_headers(letter, 64 * 1024)[LETTER])
    assert (found.replays, found.attempts, found.history[-1]) == (3, 0, PAST[-1])
    assert restarted("nonsense", replays=4) == Counters(replays=5)
