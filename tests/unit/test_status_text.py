"""What does `unpoison status` print for each state, on screens of every width?"""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from unpoison.cli.source_status import InStore, SourceStatus
from unpoison.cli.status_text import show
from unpoison.port.at_broker import AtBroker
from unpoison.port.broker import Depth
from unpoison.store.port import ADMISSION, OPEN, OPERATOR, PAUSING, ConsumerSign, Pause, SharedCircuit

NOW = 1_800_000_000.0
DAY = 86_400.0
HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold red]:bomb:\u202e\r\n{link=x}"
MANY_DEAD = {"dead": 51, "ended": 251, "within": 60.0, "samples": ["KeyError: 'vat'"]}


def a_consumer(consumer="web-1:4711", source="orders", state="running", version="1.4.2"):
    return ConsumerSign(consumer, source, version, NOW - 3_600, NOW - 2, state)


def a_pause(kind=OPERATOR, reason="billing migration", by="eva@web-1", since=NOW - 300, evidence=None):
    return Pause("orders", kind, reason, by, since, None if kind == OPERATOR else "1.4.2", evidence or {})


def a_circuit(dependency="billing:443", state=OPEN, **changes):
    samples = ("ConnectionRefusedError: [Errno 111] Connection refused",)
    given = {"is_named": True, "since": NOW - 120, "messages": 57, "samples": samples, "next_probe_at": NOW + 4} | changes
    return SharedCircuit("orders", dependency, state=state, interval=8.0, by="web-1:4711", **given)


def a_status(pauses=(), circuits=(), consumers=None, source="orders", store=True, **broker):
    depth = broker.pop("depth", Depth(ready=12_345, delayed=7, leased=4, dead=3))
    there = AtBroker(depth, **({"oldest": 65.0} | broker))
    known = InStore(pauses, circuits, [a_consumer()] if consumers is None else consumers) if store else None
    return SourceStatus(source, NOW, there, "", known)


def printed(*found, width=2_000, named=" --app shop:app"):
    out = io.StringIO()
    screen = Console(file=out, width=width, force_terminal=True, markup=False, emoji=False, highlight=False, no_color=True)
    show(screen, found, named)
    return out.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")


def in_one_line(*found, **options):
    return " ".join(printed(*found, **options).split())


def row(status):
    heading, line, *_ = printed(status).splitlines()
    assert heading.split() == ["SOURCE", "STATE", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST"]
    return line


def test_all_is_well_in_one_row_with_the_consumers_below():
    assert row(a_status()).split() == ["orders", "running", "12,345", "7", "4", "3", "1", "min"]
    assert printed(a_status()).splitlines()[2:] == [
        "",
        "CONSUMER    SOURCE  VERSION  STATE    SEEN     STARTED",
        "web-1:4711  orders  1.4.2    running  2 s ago  1 h ago",
    ]


def test_a_pause_by_a_person_says_who_since_when_why_and_what_ends_it():
    paused = a_status([a_pause()])
    assert row(paused).split()[1] == "paused"
    text = in_one_line(paused)
    assert "'orders' is paused by eva@web-1 since 2027-01-15 " in text
    assert "(5 min ago): billing migration. Nothing starts until someone runs: unpoison resume orders --app shop:app" in text


def test_a_pause_because_of_dead_letters_shows_its_evidence_and_one_command():
    paused = a_status([a_pause(ADMISSION, "told otherwise", "web-1:4711", evidence=MANY_DEAD)])
    text = in_one_line(paused)
    assert "is paused by consumer web-1:4711 (version 1.4.2) since" in text
    assert "of 251 messages that ended within 60 s, 51 were to become dead letters (KeyError: 'vat')" in text
    assert "told otherwise" not in text
    assert text.count("unpoison resume orders") == text.count("To resume it now:") == 1


def test_where_a_new_version_goes_on_the_source_runs_though_the_old_one_is_paused():
    pause = a_pause(ADMISSION, by="web-1:4711", evidence=MANY_DEAD)
    old, new = a_consumer(state="paused"), a_consumer("web-2:9", version="1.5.0")
    assert a_status([pause], consumers=[old, new]).state == "running"
    assert a_status([pause], consumers=[old, a_consumer("web-2:9", version="1.5.0", state="paused")]).state == "paused"
    assert a_status([pause], consumers=[old]).state == "paused"
    assert a_status([pause], consumers=[]).state == "paused"
    assert a_status([pause, a_pause()], consumers=[old, new]).state == "paused", "a person pauses all versions"
    said = in_one_line(a_status([pause], consumers=[old, new]))
    assert (
        "'orders': consumers with version 1.4.2 are paused, those with another one go on. It was paused by consumer web-1" in said
    )
    assert "51 were to become dead letters (KeyError: 'vat')" in said


def test_nothing_that_a_new_version_handles_is_about_to_be_deleted_because_an_old_one_is_paused():
    pause, new = a_pause(ADMISSION, since=NOW - 3 * DAY), a_consumer(version="1.5.0")
    assert a_status([pause], consumers=[new], oldest=None, deleted_after=4 * DAY).deleted_in is None
    assert a_status([pause], oldest=None, deleted_after=4 * DAY, consumers=[]).deleted_in == DAY


@pytest.mark.parametrize("evidence", [{"dead": "many"}, {}, {"dead": 1, "ended": None}])
def test_evidence_that_cannot_be_read_is_replaced_by_the_words_that_came_with_it(evidence):
    text = in_one_line(a_status([a_pause(ADMISSION, "too many dead letters", evidence=evidence)]))
    assert "(5 min ago). too many dead letters To resume it now: unpoison resume orders" in text


def test_an_outage_that_pauses_the_source_is_its_state():
    outage = a_status([], [a_circuit(state=PAUSING), a_circuit("smtp:25")], [a_consumer(state="paused")])
    assert row(outage).split()[1] == "outage"
    text = in_one_line(outage)
    assert "'orders': billing:443 is down since 2027-01-15" in text
    assert "57 different messages failed on it (ConnectionRefusedError: [Errno 111] Connection refused)." in text
    assert "nothing but probes starts, and no message is charged. The next probe is due in 4 s" in text


def test_after_a_probe_that_succeeded_the_source_runs_again_and_nothing_is_said_of_the_next_probe():
    ramp = a_status([], [a_circuit(state=PAUSING)], [a_consumer(), a_consumer("web-2:7", state="paused")])
    assert "running, 1 outage" in row(ramp)
    text = in_one_line(ramp)
    assert "'orders': a probe has succeeded, and messages start again, slowly at first." in text
    assert "that ends the outage of billing:443 since 2027-01-15 " in text
    assert "57 different messages failed on it" in text
    assert "next probe" not in text
    assert "is down" not in text
    others = a_status([], [a_circuit(state=PAUSING)], [a_consumer(state="paused"), a_consumer("web-2:7")])
    assert row(others).split()[1] == "outage"


def test_while_a_person_has_paused_the_source_nothing_is_said_to_be_tried():
    pauses = [a_pause(ADMISSION, by="web-1:4711", evidence=MANY_DEAD), a_pause()]
    text = in_one_line(a_status(pauses, [a_circuit(state=PAUSING)], [a_consumer(state="paused")]))
    assert text.index("paused by eva@web-1") < text.index("paused by consumer web-1:4711")
    assert "restart with the new version. The command above ends this pause too." in text
    assert "While a person has paused the source, nothing is tried, and no message is charged." in text
    assert "probe" not in text
    assert "is tried, and the first that succeeds" not in text
    assert text.count("unpoison resume orders") == 1


def test_without_a_consumer_no_probe_is_promised():
    text = in_one_line(a_status([], [a_circuit()], []))
    assert "No consumer is alive that could try whether it works again." in text
    assert "probe is due" not in text


def test_a_problem_of_several_sources_is_told_once():
    found = [SourceStatus(name, NOW, None, "There is nothing.", InStore()) for name in ("orders", "emails")]
    assert printed(*found).count("There is nothing.") == 1
    assert "'orders', 'emails': There is nothing." in printed(*found)


def test_in_a_partial_outage_the_source_runs_and_the_row_says_so():
    partial = a_status([], [a_circuit(), a_circuit("ValueError", is_named=False, next_probe_at=NOW - 9)])
    assert "running, 2 outages" in row(partial)
    text = in_one_line(partial)
    assert "Messages that fail on it wait and are not charged; the others go on. The next probe is due in 4 s" in text
    assert "too many messages fail alike (ValueError) since" in text
    assert "The next probe is due now" in text


def test_an_outage_during_a_pause_is_told_with_it():
    both = a_status([a_pause()], [a_circuit()], [a_consumer(state="paused")])
    assert row(both).split()[1].startswith("paused")
    assert "billing:443 is down" in in_one_line(both)


def test_without_a_consumer_what_waits_is_told():
    lonely = a_status(consumers=[], depth=Depth(ready=1))
    assert "no consumer" in row(lonely)
    assert "no consumer that has this store is alive, and 1 message waits." in in_one_line(lonely)
    assert "is alive" not in printed(a_status(consumers=[], depth=Depth()))


def test_without_a_store_the_state_is_unknown():
    assert row(a_status(store=False)).split()[1] == "unknown"


def test_a_source_that_the_broker_does_not_know_has_its_reason_below():
    missing = SourceStatus("orders", NOW, None, "It does not exist.", InStore())
    assert row(missing).split() == ["orders", "no", "consumer", *["unknown"] * 5]
    assert "'orders': It does not exist." in printed(missing)


@pytest.mark.parametrize(
    ("oldest", "ready", "shown"),
    [(None, 3, "unknown"), (None, 0, "–"), (0.4, 1, "0 s"), (7_200.0, 1, "2 h"), (3 * DAY, 1, "3 d")],
)
def test_the_age_of_the_oldest_is_unknown_where_the_broker_cannot_tell(oldest, ready, shown):
    assert row(a_status(oldest=oldest, depth=Depth(ready=ready))).endswith(shown)


# What the broker deletes


def test_how_long_messages_are_kept_is_one_line_for_all_sources_with_the_same_limit():
    found = [a_status(source=name, deleted_after=7 * DAY) for name in ("orders", "emails")]
    assert "The broker deletes waiting messages 7 d after their publish: orders, emails\n" in printed(*found)
    assert "WARNING" not in printed(*found)


def test_at_half_of_its_time_the_oldest_message_is_a_loud_warning():
    late = a_status(oldest=4 * DAY, deleted_after=7 * DAY)
    assert "WARNING: the broker deletes messages of 'orders' 7 d after their publish, and the oldest has waited for 4 d." in (
        in_one_line(late)
    )
    assert "It is deleted in 3 d; only a RabbitMQ queue that unpoison made keeps it, as a dead letter." in in_one_line(late)
    assert "Have it consumed before that, or raise the time at the broker." in in_one_line(late)
    assert late.deleted_in == 3 * DAY
    assert a_status(oldest=3.4 * DAY, deleted_after=7 * DAY).deleted_in is None
    assert "It is deleted now" in in_one_line(a_status(oldest=8 * DAY, deleted_after=7 * DAY))


def test_the_times_of_the_warning_add_up():
    text = in_one_line(a_status(oldest=1.6 * DAY, deleted_after=3 * DAY))
    assert "3 d after their publish, and the oldest has waited for 1.6 d. It is deleted in 1.4 d" in text


def test_where_the_broker_cannot_tell_the_age_a_long_pause_is_the_warning():
    paused = a_status([a_pause(since=NOW - 4 * DAY)], oldest=None, deleted_after=7 * DAY)
    assert "'orders' has been paused for 4 d. What waits since then is deleted in 3 d" in in_one_line(paused)
    assert a_status([a_pause(since=NOW - 3 * DAY)], oldest=None, deleted_after=7 * DAY).deleted_in is None
    assert a_status(oldest=None, deleted_after=7 * DAY).deleted_in is None


def test_an_outage_that_pauses_the_source_for_long_is_the_warning_too():
    down = a_circuit(state=PAUSING, since=NOW - 4 * DAY)
    late = a_status([], [down], [a_consumer(state="paused")], oldest=None, deleted_after=7 * DAY)
    assert "'orders' has been paused for 4 d. What waits since then is deleted in 3 d" in in_one_line(late)
    partial = a_status([], [a_circuit(since=NOW - 4 * DAY)], oldest=None, deleted_after=7 * DAY)
    assert partial.deleted_in is None


def test_a_command_in_which_a_password_is_hidden_says_so():
    lines = printed(a_status([a_pause()]), named=" --url 'amqp://shop:***@mq/shop'").splitlines()
    assert "      unpoison resume orders --url 'amqp://shop:***@mq/shop'  # *** is the password" in lines


def test_nothing_is_deleted_where_nothing_waits():
    empty = a_status([a_pause(since=NOW - 9 * DAY)], oldest=None, deleted_after=7 * DAY, depth=Depth(dead=5))
    assert empty.deleted_in is None


# Screens


@pytest.mark.parametrize("width", [110, 80, 60, 40])
@pytest.mark.parametrize("source", ["orders", "shop.eu-west.invoices.v2"])
def test_every_line_fits_the_screen(width, source):
    long = a_consumer("shop-consumer-7d9f8b6c5-x2x9z:4711", source)
    found = [
        a_status([a_pause(ADMISSION, evidence=MANY_DEAD)], [a_circuit()], [long], source, deleted_after=7 * DAY, oldest=6 * DAY),
        a_status([a_pause()], source="emails"),
        a_status(source="refunds", depth=Depth(ready=1_234_567, delayed=1_234_567, leased=1_000, dead=99_999)),
    ]
    lines = printed(*found, width=width, named="").splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "1,234,567" in " ".join(lines)


def test_a_command_stands_on_a_line_of_its_own_and_is_quoted():
    pause = Pause("my orders; rm x", OPERATOR, "why", "eva@web-1", NOW)
    lines = printed(a_status([pause], source="my orders; rm x"), width=40, named=" --app shop:app").splitlines()
    assert "      unpoison resume 'my orders; rm x' --app shop:app" in lines


def test_nothing_that_others_wrote_acts_on_the_terminal():
    circuit = a_circuit(HOSTILE, samples=(HOSTILE,))
    pauses = [a_pause(reason=HOSTILE, by=HOSTILE), a_pause(ADMISSION, HOSTILE, HOSTILE)]
    status = a_status(pauses, [circuit], [a_consumer(HOSTILE, HOSTILE, HOSTILE, HOSTILE)], HOSTILE)
    text = printed(status)
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)
    assert "[bold red]:bomb:" in text
