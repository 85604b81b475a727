"""Does docs/outage.md show every line of flow control word for word, and are its numbers those of the code?"""

import inspect
import re
from typing import get_args

import pytest

from tests.docs.pages import ROOT, blocks
from unpoison.cli.source_status import InStore, SourceStatus
from unpoison.control import admission, beside, breaker, budget, circuits, evidence, options, throttle, turns
from unpoison.control.admission import TooManyDead
from unpoison.control.changes import (
    BudgetUsedUp,
    Change,
    Closed,
    Expiring,
    Opened,
    OperatorPause,
    Paused,
    Resumed,
    Slowed,
    StillDown,
)
from unpoison.control.evidence import End, Evidence
from unpoison.control.options import Admission, Breaker
from unpoison.flow import settling, store_link
from unpoison.reporting.control_lines import lines
from unpoison.store.port import ConsumerSign, Pause, SharedCircuit

PAGE = (ROOT / "docs" / "outage.md").read_text()
WORDS = " ".join(PAGE.split())
SHOWN = [" ".join(block.text.split()) for block in blocks(PAGE) if block.language == "text"]

REFUSED = "httpx.ConnectError: [Errno 111] Connection refused"
BILLING = Evidence("billing.example.com:443", 0.0, 10, (REFUSED,))
BROKEN = Evidence("billing.example.com:443", 0.0, 10, ("httpx.HTTPStatusError: Server error '500 Internal Server Error'",))
GUESS = Evidence(
    "ConnectionRefusedError in shop.py:charge",
    0.0,
    10,
    ("ConnectionRefusedError: [Errno 111] Connection refused",),
    is_named=False,
)
QUOTA = Evidence("api.example.com:443", 0.0, 3, ("httpx.HTTPStatusError: Client error '429 Too Many Requests'",))
DEPLOY = TooManyDead(0.0, 51, 240, 6.0, ("AttributeError: 'Order' object has no attribute 'total'",))
EVA = OperatorPause("eva@web-1", "billing moves", 1_772_334_720.0)

CHANGES: list[tuple[Change, float]] = [
    (Paused(BILLING), 1.2),
    (Paused(DEPLOY), 6.0),
    (Paused(EVA), 0.0),
    (Opened(BILLING), 0.35),
    (Opened(GUESS), 1.7),
    (Resumed(720.0, BILLING), 0.0),
    (Resumed(60.0, DEPLOY, True), 0.0),
    *((Closed("billing.example.com:443", 4_140.0 if end is End.FORGOTTEN else 720.0, end), 0.0) for end in End),
    (StillDown(BROKEN, 1_800.0), 1_800.0),
    (Slowed(QUOTA, 30.0), 0.8),
    (Slowed(QUOTA, 0.0), 0.8),
    (BudgetUsedUp(1_234, 0.2), 0.0),
    (Expiring(172_800.0, 345_600.0), 0.0),
]


def told(change: Change, now: float):
    (line,) = lines("orders", [change], now)
    return line


@pytest.mark.parametrize(("change", "now"), CHANGES, ids=lambda each: type(each).__name__)
def test_a_line_is_shown_word_for_word(change, now):
    assert told(change, now).text in SHOWN


def test_every_change_and_every_reason_of_a_pause_is_there():
    assert {type(change) for change, _ in CHANGES} == set(get_args(Change))
    reasons = {type(change.reason) for change, _ in CHANGES if isinstance(change, Paused)}
    assert reasons == {Evidence, TooManyDead, OperatorPause}


def test_the_lines_about_the_store_are_shown():
    written = inspect.getsource(store_link)
    for shown in (each for each in SHOWN if each.startswith("Source 'orders': ")):
        assert shown.removeprefix("Source 'orders': ").removeprefix("… ") in written
    assert sum(each.startswith("Source 'orders': ") for each in SHOWN) == 2


def test_what_lines_about_single_messages_end_with_is_told():
    rules = inspect.getsource(settling) + inspect.getsource(circuits)
    for name, end in (("outage", "outage: {"), ("admission", "admission: not made a dead letter, since too many are")):
        assert end in rules, name
    assert "; not charged, since other messages fail on {dependency} too" in rules
    assert "`admission: not made a dead letter, since too many are`" in PAGE
    assert "`not charged, since other messages fail on … too`" in PAGE


def test_every_event_is_there_with_its_fields():
    rows = re.findall(r"(?m)^\| (`[\w-]+`(?:, `[\w-]+`)*) \| (.*?) \| .*\|$", PAGE.partition("\n## Alerts")[2])
    listed = {name: set(re.findall(r"`(\w+)`", fields)) for names, fields in rows for name in re.findall(r"`([\w-]+)`", names)}
    del listed["event"]
    listed["outage-lasts"] = listed["outage"]  # "the same"
    events: dict[str, set[str]] = {"store-away": set(), "store-back": set()}
    for change, now in CHANGES:
        line = told(change, now)
        events.setdefault(line.event, set()).update(line.fields)
    events["outage"].discard("reason")  # of a pause
    events["outage-lasts"].discard("reason")
    events["resume"] -= events["pause"] - {"reason", "seconds"}  # "those of its pause"
    listed["resume"].discard("pause")
    events["pause"] |= {"outage", "admission", "operator", "broker"}
    assert listed == events
    away = re.findall(r'fields\("(store-(?:away|back))"', inspect.getsource(store_link))
    assert set(away) == {"store-away", "store-back"}


def test_every_field_of_status_as_json_is_there():
    pause, circuit = Pause("orders", "operator", "why", "eva"), SharedCircuit("orders", "x", True, "open", 0, 1, (), 0, 0, "eva")
    consumer = ConsumerSign("web-1:7", "orders", None, 0, 0, "running")
    status = SourceStatus("orders", 0.0, store=InStore([pause], [circuit], [consumer])).as_json()
    section = PAGE.partition("### What status shows")[2].partition("\n###")[0]
    shown = set(re.findall(r"`(\w+)`", section))
    assert status.keys() <= shown
    assert status["pauses"][0].keys() | status["consumers"][0].keys() <= shown
    assert shown & status["outages"][0].keys() >= {"dependency", "since", "messages", "samples", "next_probe_at", "state"}


def test_its_numbers_are_those_of_the_code():
    usual, letters = Breaker(), Admission()
    said = {
        "within 30 seconds": usual.within == 30,
        "**ten different messages**": usual.messages == 10,
        "fewer than a tenth of them": evidence.MAX_RECOVERED == 0.1,
        "at least 0.5 % of all messages": evidence.LEAST_SHARE == 0.005,
        "in these 30 seconds or in the last three": evidence.LATELY * usual.within == 3,
        "not more than one other message succeeded": evidence.MAX_RECOVERED * usual.messages == 1,
        "keeps two charges at most": evidence.CHARGED_AT_MOST == 2,
        "After 1 second one message is tried, then one after 2, 4, 8 and at last 15": (usual.first_probe, usual.longest_probe)
        == (1, 15),
        "(three at most run at once)": breaker.MAX_PROBES == 3,
        "**sixty new messages in a row** have failed on it, for at least a second": (
            beside.ROW * usual.messages,
            beside.HARDLY_ANY_FOR,
        )
        == (60, 1),
        "the row must be longer by fifteen": beside.LONGER * usual.messages == 15,
        "1, 2, 4 … 64 of those that waited": breaker.RAMP_ENDS == 64,
        "If the first three fail on the dependency, or later ten in a row": (breaker.RAMP_FAILS, usual.messages) == (3, 10),
        "when none of them has failed for 30 seconds": breaker.RAMP_LASTS == 30,
        "run again in the last three seconds": evidence.LATELY * usual.within == 3,
        "if only nine still fail on it, for twenty minutes": (usual.messages - 1, breaker.FORGET_AFTER) == (9, 1200),
        "Told again every ten minutes": circuits.SAY_AGAIN_EVERY == 600,
        "**three different messages** are throttled on one dependency within 10 seconds": (throttle.MESSAGES, throttle.WITHIN)
        == (3, 10),
        "for the time asked for, 60 seconds at most": throttle.LONGEST == 60,
        "grows by a tenth each second": throttle.GROWTH == 1.1,
        "and always ten a second": budget.FLOOR == 10,
        "`budget=0.2` retries may be a fifth": options.DEFAULT_CONTROL.budget == 0.2,
        "`admission=Admission(share=0.2, at_least=50, within=60)`": (letters.share, letters.at_least, letters.within)
        == (0.2, 50, 60),
        "within 60 seconds or within the last 6": letters.within * admission.LATELY == 6,
        "each consumer tries one message a minute meanwhile": admission.PROBE_INTERVAL == 60,
        "for the first minute": letters.within == 60,
        "most messages fail (more than 5 of them)": (admission.MOST, admission.FEW * letters.at_least) == (0.5, 5),
        "once 200 have failed that are more than a fifth": admission.MANY * letters.at_least == 200,
        "up to 15 minutes": admission.LONGEST_INTERVAL == 900,
        "comes back after seven to ten minutes": (turns.LONGEST_WAIT, round(turns.spread_out(turns.LONGEST_WAIT, 0) / 60))
        == (600, 7),
    }
    assert [words for words in said if words not in WORDS] == []
    assert [words for words, is_true in said.items() if not is_true] == []
