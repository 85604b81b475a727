"""What a subclass of PoisonPillHandler says or brings along is heeded, by itself and in a consumer."""

import itertools

import pytest

from unpoison import (
    App,
    Backoff,
    ConfigError,
    ErrorClassification,
    MessageMetadata,
    Permanent,
    PoisonPillHandler,
    Policy,
    RetryLater,
)
from unpoison.app_internals import consumers_of
from unpoison.errors import Throttled

numbers = itertools.count()


class OrderGone(Exception):
    """No rule knows it."""


class Ours(PoisonPillHandler):
    """Knows exceptions of its own."""

    def classify_error(self, exc):
        return ErrorClassification.PERMANENT if isinstance(exc, OrderGone) else super().classify_error(exc)


class WithState(PoisonPillHandler):
    """Is made differently, and has something of its own."""

    def __init__(self, tenant):
        super().__init__(max_attempts=2)
        self.tenant, self.asked = tenant, []

    def should_retry(self, metadata, exc):
        self.asked.append(metadata.attempt)
        return self.tenant == "ada" and super().should_retry(metadata, exc)


class WithHooks(PoisonPillHandler):
    """Has its hooks as methods."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def on_retry(self, message, metadata, delay):
        self.seen.append(("retry", metadata.attempt))

    def on_dlq(self, message, metadata, exc):
        self.seen.append(("dlq", metadata.attempt))

    def error_classifier(self, exc):
        return ErrorClassification.TRANSIENT if isinstance(exc, ValueError) else None


def letter_of(handler, error, **options):
    """The dead letter of a message whose handler always raises this."""
    app = App(f"memory://subclass-{next(numbers)}")

    @app.consumer("orders", handler=handler, **options)
    def fail(body: bytes):
        raise error

    app.publish("orders", b"1")
    app.run(until_empty=True)
    (letter,) = app.dlq("orders").peek()
    app.close()
    return letter


def test_a_classify_error_of_its_own_is_asked_by_should_retry():
    assert PoisonPillHandler().should_retry(MessageMetadata("m"), OrderGone())
    assert not Ours().should_retry(MessageMetadata("m"), OrderGone())
    assert Ours().should_retry(MessageMetadata("m"), ConnectionError())
    assert not Ours().should_retry(MessageMetadata("m"), KeyError())


def test_a_classify_error_of_its_own_decides_in_a_consumer():
    letter = letter_of(Ours(), OrderGone())
    assert (letter.classification, letter.attempts) == ("permanent", 1)
    assert "Ours.classify_error said permanent" in letter.rule
    letter = letter_of(Ours(max_attempts=1), ConnectionError("away"))
    assert "Ours" not in letter.rule + letter.reason, "it left this one to the rules"


def failure(handler, exc):
    return handler.failure(exc, MessageMetadata("m"))


def test_what_a_policy_and_a_classifier_say_is_what_super_answers():
    handler = Ours(
        policies={KeyError: Policy(classification=ErrorClassification.TRANSIENT)}, error_classifier=lambda exc: "throttled"
    )
    assert handler.classify_error(KeyError()) is ErrorClassification.TRANSIENT
    assert failure(handler, ValueError()).classification is ErrorClassification.THROTTLED
    assert failure(handler, OrderGone()).classification is ErrorClassification.PERMANENT


def test_what_the_handler_says_itself_goes_before_a_classify_error():
    class Deaf(PoisonPillHandler):
        def classify_error(self, exc):
            return ErrorClassification.PERMANENT

    assert failure(Deaf(), RetryLater(5)).retry_after == 5
    assert not failure(Deaf(), Throttled(7)).charged
    assert failure(Deaf(), Permanent("x")).rule.startswith("the handler raised")
    assert failure(Deaf(), ConnectionError()).classification is ErrorClassification.PERMANENT


@pytest.mark.parametrize("answer", ["nonsense", 7, RuntimeError("broken")])
def test_a_classify_error_that_gives_no_answer_changes_nothing_and_the_rule_says_so(answer):
    class Broken(PoisonPillHandler):
        def classify_error(self, exc):
            if isinstance(answer, Exception):
                raise answer
            return answer

    found = failure(Broken(), ConnectionError())
    assert found.classification is ErrorClassification.TRANSIENT
    assert "Broken.classify_error was not heeded" in found.rule


def test_a_backoff_beside_a_handler_keeps_the_handler_as_it_is():
    handler = WithState("ada")
    app = App("memory://state")
    app.consumer("orders", handler=handler, backoff=Backoff.fixed(0.01))(lambda body: None)
    registration = consumers_of(app)["orders"]
    assert registration.call.handler is handler
    assert registration.options.limits.backoff == Backoff.fixed(0.01)
    assert registration.options.limits.max_attempts == 2
    letter = letter_of(handler, ConnectionError("away"), backoff=Backoff.immediate())
    assert letter.attempts == 2
    assert handler.asked == [1, 2]


def test_a_backoff_beside_a_handler_must_be_one():
    with pytest.raises(ConfigError, match="backoff must be a Backoff, got 5"):
        App("memory://backoff").consumer("orders", handler=PoisonPillHandler(), backoff=5)(lambda body: None)


def test_hooks_and_a_classifier_may_be_methods_of_a_subclass():
    handler = WithHooks(max_attempts=2, backoff=Backoff.immediate())
    letter = letter_of(handler, ValueError("x"))
    assert letter.classification == "transient"
    assert handler.seen == [("retry", 1), ("dlq", 2)]


def test_a_hook_that_is_given_goes_before_the_method():
    seen = []
    handler = WithHooks(max_attempts=1, on_dlq=lambda *arguments: seen.append("given"))
    letter_of(handler, ConnectionError("x"))
    assert (seen, handler.seen) == (["given"], [])
