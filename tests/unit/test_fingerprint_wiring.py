"""Every failure that is reported or stored has the fingerprint that its letter will have, wherever the failure was made."""

import pytest

from tests.unit.classifying import raised
from unpoison import App
from unpoison.decide.attempts import admit, admit_alone, cut_off
from unpoison.flow.settling import GivenUp, SettlementBuilder
from unpoison.model.backoff import Limits
from unpoison.model.fingerprint import of_failure, of_letter
from unpoison.model.message import Counters, Delivery
from unpoison.port.reading import failure_of

LIMITS = Limits(max_attempts=3)
DELIVERY = Delivery(1, "orders", "id", b"{}")
MADE_BY_THE_CONSUMER = {
    "lost": lambda: admit_alone(Counters(attempts=5, vanished=2, alone=True), LIMITS).failure,
    "used up": lambda: admit(Counters(attempts=9), LIMITS).failure,
    "interrupted": lambda: cut_off(Counters()),
    "unreadable": lambda: failure_of(ValueError("bad byte 17")),
}


@pytest.mark.parametrize("name", MADE_BY_THE_CONSUMER)
def test_what_the_consumer_gives_up_has_a_fingerprint_in_its_log_line_and_in_its_letter(name):
    failure = MADE_BY_THE_CONSUMER[name]()
    builder = SettlementBuilder(LIMITS, "consumer", None)
    judged = builder([GivenUp([DELIVERY], failure)])
    assert judged.events[0].failure.fingerprint == of_failure(failure, "orders")
    for letter in (dead.letter for dead in (*judged.settlement.dead, *builder.bare(DELIVERY, failure).dead)):
        assert letter.fingerprint == of_failure(failure, "orders") == of_letter(letter)


def test_a_worker_knows_the_source_of_its_handler():
    app = App("memory://")

    @app.consumer("payments", timeout=3)
    def pay(order: dict[str, int]) -> None:
        pass

    call = app._consumers["payments"].call
    delivery = Delivery(0, "", "", b"")
    misfit = call.failed(delivery, raised(call.decode, b"[]"))
    for failure in (misfit, call.timed_out(delivery)):
        assert failure.fingerprint == of_failure(failure, "payments") != of_failure(failure, "orders")
