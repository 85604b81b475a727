"""A fingerprint is made from plain texts: of any age, any length, and by anyone."""

import re
from importlib import import_module

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.classifying import UNKNOWN, raised
from tests.unit.fingerprinting import letter
from unpoison.body.json_text import Unfit
from unpoison.decide.policy import PoisonPillHandler
from unpoison.flow.settling import letter as letter_of_failure
from unpoison.model import error_text, fingerprint, frames, traceback_text, verdict
from unpoison.model.error_text import READ, gist
from unpoison.model.failure import TEXT_LIMIT, TRACEBACK_LIMIT, Crash, Failure, cap, describe
from unpoison.model.fingerprint import of_failure, of_letter, renewed
from unpoison.model.message import Counters, Delivery
from unpoison.model.verdict import Ruling
from unpoison.port import serialization
from unpoison.worker.call import Call

sre, sre_parser = import_module("re._constants"), import_module("re._parser")
texts = st.text(st.characters())  # with lone surrogates
pieces = st.lists(
    st.one_of(
        texts,
        st.sampled_from(
            [
                "Traceback (most recent call last):\n",
                '  File "/app/shop.py", line 3, in ship\n',
                '  File "/app/shop.py", line 3 in ship\n',
                "  + Exception Group Traceback (most recent call last):\n",
                "  +-+---------------- 1 ----------------\n",
                "    | ValueError: 1\n",
                "      +---------------- 2 ----------------\n",
                f"\n{traceback_text.CAUSED}\n\n",
                f"\n{traceback_text.MEANWHILE}\n\n",
                "  [Previous line repeated 9 more times]\n",
                "Current thread 0x01 (most recent call first):\n",
                "… 12 characters left out …\n",
                "KeyError: 'x'\n",
                "at $.lines[0]: 'x' is not of type 'integer'",
            ]
        ),
    )
).map("".join)
kinds = st.one_of(
    texts, st.sampled_from(["KeyError", "RecursionError", "unpoison.Unfit", "unpoison.WorkerDied", fingerprint._PYDANTIC])
)
crashes = st.none() | st.builds(Crash, signal=st.none() | texts, exit_code=st.none() | st.integers(-(2**40), 2**40), stack=pieces)


def ship(order):
    return order["total"]


def descend(depth):
    return descend(depth - 1) if depth else ship({})


def refuse(text):
    raise ValueError(text)


def reject(_):
    raise Unfit("schema", "at $.lines[3].total: Field required, got {}")


CALL = Call(ship, lambda body: {}, False, PoisonPillHandler(), "orders", timeout=3.0)
FAILURES = {
    "exception": lambda: CALL.failed(Delivery(1, "orders", "id", b"{}"), raised(ship, {})),
    "deep": lambda: CALL.failed(Delivery(1, "orders", "id", b"{}"), raised(descend, 60)),
    "long": lambda: CALL.failed(Delivery(1, "orders", "id", b"{}"), raised(refuse, "order '" + "x" * 100_000 + "' is odd")),
    "misfit": lambda: CALL.failed(Delivery(1, "orders", "id", b"{}"), raised(reject, b"")),
    "timeout": lambda: CALL.timed_out(Delivery(1, "orders", "id", b"{}")),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_stored_letter_gets_the_fingerprint_that_its_failure_had(name):
    failure = FAILURES[name]()
    rule = Ruling(verdict.DeadLetter("r"), failure.classification, f"{failure.classification}: {failure.rule}")
    written = letter_of_failure(
        Delivery(1, "orders", "id", b"{}"), Counters(), failure, rule, "r", consumer="c", code_version=None
    )
    record = serialization.record_text(written)
    assert failure.fingerprint.startswith(f"{fingerprint.VERSION}-")
    for stored in (failure.fingerprint, "a1b2c3d4e5f6", "", "another program's"):
        row = (1, "dead", 0, stored, "id", None, None, b"{}", record)
        assert serialization.letter("orders", row).fingerprint == failure.fingerprint


@given(kinds, texts, pieces, crashes, texts)
def test_a_failure_and_its_letter_have_one_fingerprint_and_nothing_makes_it_raise(kind, text, traceback, crash, rule):
    list(fingerprint._key("orders", kind, text, traceback, crash, rule))
    failure = Failure(classification=UNKNOWN, rule=rule, type_name=kind, text=text, traceback=traceback, crash=crash)
    found = of_letter(letter(kind, text, traceback, crash, rule))
    assert found == of_failure(failure, "orders")
    assert re.fullmatch(r"2-[0-9a-f]{12}", found)


def test_a_fault_in_reading_a_traceback_leaves_type_and_source(monkeypatch):
    monkeypatch.setattr(traceback_text, "read", raises_a_fault)
    assert of_letter(letter("ValueError", "a")) == of_letter(letter("ValueError", "b")) != of_letter(letter("KeyError", "a"))


def raises_a_fault(_):
    raise IndexError


def test_one_of_a_newer_version_stays_and_any_other_is_made_anew():
    mine = of_letter(letter())
    assert renewed(letter(mark="3-0123456789ab")).fingerprint == "3-0123456789ab"
    for old in ("1-0123456789ab", "0123456789ab", "", "3-", "3-0123456789abc", "x" * 10_000):
        assert renewed(letter(mark=old)).fingerprint == mine
    assert renewed(letter(mark=mine)).fingerprint == mine


def test_a_letter_that_is_read_by_its_record_is_grouped_anew():
    old = msgspec.structs.replace(letter("KeyError", "'total'"), fingerprint="0123456789ab")
    found = serialization.letter_of(serialization.letter_within(old, 10_000), old.message, letter, id_="a", state="dead")
    assert found.fingerprint == of_letter(old)


@given(texts)
@example("order '" + "x" * 10_000)
@example("x" * 3_000 + " '17'")
def test_a_text_that_was_cut_says_the_same(text):
    assert gist(cap(text * 50, TEXT_LIMIT)) == gist(text.encode("utf-8", "replace").decode() * 50)


def test_a_traceback_that_was_cut_twice_says_the_same_as_one_cut_once():
    def tangled(depth):
        return tangled(depth - 1) if depth else refuse("y" * 30_000)

    kind, text, once = describe(raised(tangled, 3))
    twice = cap(once, TRACEBACK_LIMIT)
    assert len(once) > TRACEBACK_LIMIT
    assert of_letter(letter(kind, text, once)) == of_letter(letter(kind, text, twice))


def test_a_letter_cut_to_fit_a_header_keeps_the_fingerprint_it_was_given_before():
    failure = FAILURES["long"]()
    full = letter("ValueError", failure.text, failure.traceback, mark=failure.fingerprint)
    cut = serialization.letter_of(serialization.letter_within(full, 700), full.message, letter, id_="a", state="dead")
    assert len(cut.error) < len(full.error)
    assert cut.fingerprint == full.fingerprint


# Hostile texts.


def test_of_a_text_of_megabytes_only_the_beginning_is_read():
    for unit in ("'", "\"'`", "a.", "1.", "a@", "http://", "( ", "[{", "at $.", "a_1-", "\\", "x\n", "„", "=,*", "-0"):
        long = unit * (4_000_000 // len(unit))
        assert gist(long) == gist(long[:READ])
        assert len(gist(long)) <= error_text.LENGTH


def test_of_a_traceback_of_ten_thousand_lines_both_ends_are_read(monkeypatch):
    lines, feed = [], traceback_text._Reader._feed
    monkeypatch.setattr(
        traceback_text._Reader, "_feed", lambda self, line, depth: (lines.append(line), feed(self, line, depth))[1]
    )
    text = "Traceback (most recent call last):\n" + "".join(f'  File "/app/f{n}.py", line 3, in ship\n' for n in range(10_000))
    found = traceback_text.read(text + "ValueError: x\n")
    assert len(lines) < traceback_text.LIMIT / 30
    assert (found.frames[0].file, found.frames[-1].file) == ("/app/f0.py", "/app/f9999.py")
    assert len(found.frames) < traceback_text.LIMIT / 30
    assert len(lines[0]) < 100


def test_groups_nested_a_thousand_deep_are_read_as_far_as_it_makes_sense():
    text = "  + Exception Group Traceback (most recent call last):\n" + "".join(
        f"{' ' * 2 * n}+-+---------------- 1 ----------------\n{' ' * 2 * (n + 1)}| ExceptionGroup: x\n" for n in range(1, 100)
    )
    assert of_letter(letter("ExceptionGroup", "x", text * 100))


def test_no_pattern_repeats_without_bound_what_repeats_without_bound():
    """Such a pattern may look at every way to divide a text, of which there are more than atoms in the universe."""

    def unbounded(tree):
        for code, arguments in tree:
            if code in (sre.MAX_REPEAT, sre.MIN_REPEAT) and arguments[1] is sre.MAXREPEAT:
                yield arguments[2]
            parts = arguments if isinstance(arguments, list | tuple) else ()
            for part in parts:
                for each in part if isinstance(part, list) else [part]:
                    if isinstance(each, sre_parser.SubPattern):
                        yield from unbounded(each)

    patterns = [
        pattern
        for module in (error_text, fingerprint, frames, traceback_text)
        for value in vars(module).values()
        for row in (value if isinstance(value, tuple) else [value])
        for pattern in (row if isinstance(row, tuple) else [row])
        if isinstance(pattern, re.Pattern)
    ]
    assert len(patterns) > 30
    assert next(unbounded(sre_parser.parse("(a+)*"))) is not None
    for pattern in patterns:
        for repeated in unbounded(sre_parser.parse(pattern.pattern, pattern.flags)):
            assert not list(unbounded(repeated)), pattern.pattern
