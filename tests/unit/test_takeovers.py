import logging

from unpoison.model.message import Counters
from unpoison.port.takeovers import CameBack, Takeover


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_takeover_says_who_held_how_many_messages_and_since_when(caplog):
    Takeover("web-1:4711", 1_700_000_000.0, {"orders": 1_200, "mails": 0, "bills": 1}).tell()
    first, second = caplog.records
    assert first.getMessage() == (
        "Source 'orders': 1,200 messages came back from consumer web-1:4711 (running since 2023-11-14 22:13:20 UTC), which "
        "vanished. It is unknown which of them were running, so all are started again; the first time none is charged."
    )
    assert (first.levelno, first.event, first.source, first.count) == (logging.WARNING, "takeover", "orders", 1_200)
    assert (first.from_consumer, first.since) == ("web-1:4711", "2023-11-14T22:13:20+00:00")
    assert second.getMessage().startswith("Source 'bills': 1 message came back from consumer web-1:4711")


def test_what_comes_back_one_fetch_after_the_other_is_told_once_a_second(caplog):
    now = [0.0]
    came_back = CameBack(lambda: now[0])
    for count in (3, 0, 4, 5):
        came_back.note("orders", count)
        came_back.tell_due()
    assert [line.partition(" came back")[0] for line in lines(caplog)] == ["Source 'orders': 3 messages"]
    now[0] = 1.0
    came_back.tell_due()
    came_back.tell_due()
    assert lines(caplog)[1:] == [lines(caplog)[0].replace("3 messages", "9 messages")]
    assert "does not say which" in lines(caplog)[0]


def test_a_suspect_came_back_if_a_start_of_it_never_ended(caplog):
    came_back = CameBack(lambda: 0.0)
    came_back.note_suspect("orders", Counters(losses=1), Counters(losses=1))
    came_back.tell_due()
    assert lines(caplog) == []
    came_back.note_suspect("orders", Counters(losses=1), Counters(losses=2))
    came_back.tell_due()
    assert len(lines(caplog)) == 1
