"""Which news are told, when, and how often? The state machines alone, on a clock that the test moves."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.notified import notice
from unpoison.control.admission import TooManyDead
from unpoison.control.changes import BudgetUsedUp, Closed, Expiring, Opened, OperatorPause, Paused, Resumed, StillDown
from unpoison.control.evidence import Evidence
from unpoison.notifying import news, watching
from unpoison.notifying.commands import Commands
from unpoison.notifying.limits import MOST, MOST_OF_LETTERS, MOST_REMEMBERED, PERIOD, WINDOW, WORSE, Memory, Rate, together
from unpoison.notifying.notice import OF_LETTERS, Kind
from unpoison.notifying.watching import DEATHS, GROWTH, MOST_KNOWN, MOST_PENDING, PAUSED_FOR, SETTLE, Watch

COMMANDS = Commands("shop:app")
NOW = 1_000.0


def dead(group="2-abc", source="orders", since=NOW):
    return news.Dead(source, group, "bug", "KeyError: piano", "orders-1", since)


def heard(watch, changes, now, source="orders", wall=1_700_000_000.0):
    for each in news.controlled(source, changes, news.Moment(now, now, wall), COMMANDS):
        watch.hear(each, now)


def kinds(notices):
    return [each.kind for each in notices]


def outage(**facts):
    return Evidence(
        **{"dependency": "billing:443", "since": NOW, "messages": 12, "samples": ("OSError: refused 10.0.0.7",), **facts}
    )


def test_a_new_group_is_told_once_after_a_moment_with_the_number_of_its_letters():
    watch = Watch(COMMANDS)
    watch.hear(dead(since=NOW - 60), NOW)
    watch.hear(dead(), NOW + 1)
    assert watch.due(NOW + SETTLE - 0.1) == []
    (told,) = watch.due(NOW + SETTLE)
    assert (told.kind, told.fingerprint, told.counts, told.since) == (Kind.NEW_GROUP, "2-abc", {"dead": 2}, NOW - 60)
    assert [step.command for step in told.todo] == [
        "unpoison dlq show orders-1 --app shop:app",
        "unpoison dlq replay --where group:2-abc --source orders --app shop:app",
    ]
    watch.hear(dead(), NOW + 10 * PERIOD)
    assert watch.due(NOW + 11 * PERIOD) == []


def test_what_is_new_is_told_at_once_when_the_consumer_ends():
    watch = Watch(COMMANDS)
    watch.hear(dead(), NOW)
    assert kinds(watch.due(NOW, is_last=True)) == [Kind.NEW_GROUP]


def test_a_growing_dlq_is_told_at_ten_and_again_at_a_hundred_and_after_an_hour():
    watch = Watch(COMMANDS)

    def letters(count, now):
        for _ in range(count):
            watch.hear(dead(), now)
        return [each for each in watch.due(now) if each.kind is Kind.GROWING]

    assert letters(GROWTH - 1, NOW) == []
    (told,) = letters(1, NOW)
    assert (told.counts["dead"], told.groups) == (GROWTH, {"2-abc": GROWTH})
    assert letters(9 * GROWTH - 1, NOW + 1) == []
    assert [each.size for each in letters(1, NOW + 2)] == [10 * GROWTH]
    assert letters(GROWTH, NOW + PERIOD) == []
    assert len(letters(GROWTH, NOW + PERIOD + 2)) == 1
    assert watch.due(NOW + 3 * PERIOD) == [], "what is long past is not told again"


def test_a_pause_is_told_after_a_minute_and_its_end_only_if_it_was_told():
    watch = Watch(COMMANDS)
    pause = Paused(OperatorPause("ada@desk", "stock-taking", 1_700_000_000.0 - 5))
    heard(watch, [pause], NOW)
    assert watch.due(NOW + PAUSED_FOR - 1) == []
    heard(watch, [Resumed(59, pause.reason)], NOW + 59)
    assert watch.due(NOW + PAUSED_FOR + 1) == []
    heard(watch, [pause], NOW + 100)
    (told,) = watch.due(NOW + 100 + PAUSED_FOR)
    assert (told.kind, told.title, told.since) == (Kind.PAUSED, "'orders' is paused by ada@desk", NOW + 95)
    assert told.doing.startswith("'orders' is paused by ada@desk since 2023-11-14"), "in the words of the log"
    assert told.todo[-1].command == "unpoison resume orders --app shop:app"
    heard(watch, [Resumed(99, pause.reason)], NOW + 199)
    (over,) = watch.due(NOW + 199)
    assert (over.kind, over.is_end, over.subject) == (Kind.RESUMED, True, told.subject)


def test_a_long_pause_is_told_again_when_it_has_lasted_ten_times_as_long():
    watch = Watch(COMMANDS)
    heard(watch, [Paused(OperatorPause("ada", "", 0.0))], NOW)
    told = [now for now in range(0, 100_000, 10) if watch.due(NOW + now)]
    assert told == [60, 600, 6_000, 60_000]


def test_pauses_that_come_and_go_are_told_once_an_hour_and_then_the_one_that_lasts():
    watch = Watch(COMMANDS)
    pause, told = Paused(OperatorPause("ada", "", 0.0)), []
    for minute in range(0, 180, 2):
        heard(watch, [pause], NOW + 60 * minute)
        told += kinds(watch.due(NOW + 60 * minute + 61))
        heard(watch, [Resumed(90, pause.reason)], NOW + 60 * minute + 90)
        told += kinds(watch.due(NOW + 60 * minute + 91))
    assert told == [Kind.PAUSED, Kind.RESUMED] * 3


def test_an_outage_and_its_end_and_nothing_of_one_that_is_over_within_seconds():
    watch = Watch(COMMANDS)
    heard(watch, [Opened(outage())], NOW)
    heard(watch, [Closed("billing:443", 2.0)], NOW + 2)
    assert watch.due(NOW + SETTLE) == []
    heard(watch, [Opened(outage())], NOW + 10)
    (told,) = watch.due(NOW + 10 + SETTLE)
    assert (told.kind, told.counts["messages"]) == (Kind.OUTAGE, 12)
    assert "10.0.0.7" not in f"{told}", "values of messages are taken out of samples"
    heard(watch, [StillDown(outage(), 600)], NOW + 610)
    assert kinds(watch.due(NOW + 610)) == [Kind.OUTAGE]
    heard(watch, [Closed("billing:443", 700)], NOW + 710)
    assert kinds(watch.due(NOW + 710)) == [Kind.OUTAGE_OVER]


def test_an_outage_that_pauses_the_source_is_told_once():
    watch = Watch(COMMANDS)
    heard(watch, [Opened(outage()), Paused(outage())], NOW)
    assert watch.due(NOW + SETTLE) == []
    (told,) = watch.due(NOW + PAUSED_FOR)
    assert (told.kind, told.title) == (Kind.PAUSED, "'orders' is paused: billing:443 is down")


def test_too_many_dead_letters_say_how_many_and_what_resumes_the_source():
    watch = Watch(COMMANDS)
    heard(watch, [Paused(TooManyDead(NOW - 10, 57, 60, 10.0, ("shop.Refused: card 4111111111111111",)))], NOW)
    (told,) = watch.due(NOW + PAUSED_FOR)
    assert told.bad == "Of 60 messages that ended within 10 s, 57 were to become dead letters"
    assert (told.counts["would_be_dead"], told.error) == (57, "shop.Refused: card *")
    assert "4111" not in f"{told}"
    assert told.todo[-1].command == "unpoison resume orders --app shop:app"


def test_a_broker_that_is_away_for_a_minute_is_told_with_what_it_said_last():
    watch = Watch(COMMANDS)
    for second in range(61):
        watch.hear(news.lost_broker("orders", f"amqp://u:secret@mq is gone ({second})", NOW + second, COMMANDS), NOW + second)
    (told,) = watch.due(NOW + 60)
    assert "amqp://u:***@mq is gone (60)" in told.doing
    assert (told.since, told.todo[0].command) == (NOW, "unpoison doctor shop:app")
    watch.hear(news.found_broker("orders"), NOW + 70)
    assert kinds(watch.due(NOW + 70)) == [Kind.RESUMED]


def test_workers_that_die_again_and_again():
    watch = Watch(COMMANDS)
    for number in range(DEATHS):
        assert watch.due(NOW + number) == []
        watch.hear(news.Died("orders", "2-abc", "unpoison.WorkerDied: killed by SIGSEGV"), NOW + number)
    (told,) = watch.due(NOW + DEATHS)
    assert (told.kind, told.counts["deaths"]) == (Kind.CRASH_LOOP, DEATHS)
    spread = Watch(COMMANDS)
    for number in range(20):
        spread.hear(news.Died("orders", "2-abc", ""), NOW + number * WINDOW / 2)
        assert spread.due(NOW + number * WINDOW / 2) == [], "a death now and then is no loop"


def test_a_retry_budget_that_is_used_up_for_long():
    watch = Watch(COMMANDS)
    told = []
    for minute in range(8):
        heard(watch, [BudgetUsedUp(100, 0.2)], NOW + 60 * minute)
        told += [(minute, each.counts["retries"]) for each in watch.due(NOW + 60 * minute)]
    assert told == [(5, 600)]
    calm = Watch(COMMANDS)
    for minute in range(0, 60, 4):
        heard(calm, [BudgetUsedUp(100, 0.2)], NOW + 60 * minute)
        assert calm.due(NOW + 60 * minute) == []


def test_messages_that_the_broker_will_delete_are_told_at_once():
    watch = Watch(COMMANDS)
    heard(watch, [Expiring(1_800, 3_600)], NOW)
    (told,) = watch.due(NOW)
    assert (told.kind, told.title, told.counts["left"]) == (Kind.RETENTION, "Messages of 'orders' are deleted in 30 min", 1_800)


def test_the_source_of_two_apps_is_named_with_its_app_and_commands_have_the_source_itself():
    watch = Watch(COMMANDS)
    watch.hear(dead(source="orders (shop:app)"), NOW)
    (told,) = watch.due(NOW, is_last=True)
    assert told.source == "orders (shop:app)"
    assert "--source orders --app" in told.todo[1].command


def test_a_flood_of_new_groups_is_a_handful_of_notices_and_nothing_grows():
    watch, rate, sent = Watch(COMMANDS), Rate(), []
    for number in range(10_000):
        now = NOW + number / 100  # for 100 s
        watch.hear(dead(f"2-{number}"), now)
        sent += rate.passing(together(watch.due(now)), now) if number % 100 == 0 else []
    sent += rate.passing(together(watch.due(NOW + 110)), NOW + 110)
    assert len(sent) <= MOST_OF_LETTERS
    summary = rate.summary(())
    told = sum(each.counts.get("notices", 1) for each in sent if each.kind is Kind.NEW_GROUP) + summary.counts["new-group"]
    assert told == 10_000, "each group is in a notice or in the summary"
    assert len(watch._known) <= MOST_KNOWN
    for number in range(2 * MOST_PENDING):
        watch.hear(dead(f"3-{number}"), NOW + 200)
    assert len(watch._pending) == MOST_PENDING


def test_many_of_one_kind_at_once_are_told_as_one_with_the_largest():
    notices = [notice(subject=f"group|{n}", size=float(n), counts={"dead": n}, title=f"group {n}") for n in range(1, 21)]
    (told,) = together(notices)
    assert (told.title, told.bad) == ("20 new groups of dead letters", "210 dead letters so far; these are the largest:")
    assert [part.title for part in told.parts] == ["group 20", "group 19", "group 18", "group 17", "group 16"]
    assert (told.counts, told.fingerprint, told.source) == ({"notices": 20, "dead": 210}, "", "orders")
    assert len(together(notices[:3])) == 3


def test_a_flood_of_dead_letters_leaves_room_for_a_pause():
    rate = Rate()
    flood = [notice(subject=f"group|{n}") for n in range(100)]
    assert len(rate.passing(flood, NOW)) == MOST_OF_LETTERS
    assert len(rate.passing([notice(kind=Kind.PAUSED)], NOW)) == 1


def test_what_is_held_back_is_summed_up_after_ten_minutes_and_then_all_is_as_before():
    rate = Rate()
    flood = [notice(subject=f"group|{n}", size=float(n)) for n in range(20)]
    assert len(rate.passing(flood, NOW)) == MOST_OF_LETTERS
    assert rate.passing([notice()], NOW + WINDOW) == [], "until the summary, dead letters are only counted"
    assert rate.summary_at() == NOW + WINDOW
    summary = rate.summary(COMMANDS.of_letters())
    assert summary.title == "15 further notices held back"
    assert summary.bad == "15 × new-group, with 45 dead letters; the most important:"
    assert len(summary.parts) == 5
    rate.summed_up()
    assert (rate.summary_at(), rate.summary(())) == (None, None)
    assert len(rate.passing([notice()], NOW + 2 * WINDOW)) == 1


STEPS = st.lists(st.tuples(st.floats(0, 900), st.sampled_from(["a", "b", "c"]), st.floats(1, 1e6)), min_size=1, max_size=200)


@given(STEPS)
def test_the_same_is_told_at_most_once_an_hour_unless_it_is_ten_times_worse(steps):
    memory, now, told = Memory(), NOW, {}
    for passed, subject, size in steps:
        now += passed
        if memory.may_tell(subject, size, now):
            if subject in told:
                at, before = told[subject]
                assert now - at >= PERIOD or size >= WORSE * before
            told[subject] = now, size
        else:
            at, before = told[subject]
            assert now - at < PERIOD
            assert size < WORSE * before


def test_memory_is_bounded():
    memory = Memory()
    for number in range(MOST_REMEMBERED + 100):
        memory.may_tell(str(number), 1.0, NOW)
    assert len(memory) == MOST_REMEMBERED


@given(st.lists(st.tuples(st.floats(0, 300), st.sampled_from([*Kind][:-2])), max_size=120))
def test_never_more_than_so_many_in_ten_minutes_and_none_is_forgotten(steps):
    rate, now, sent, offered, summed = Rate(), NOW, [], 0, 0
    for passed, kind in steps:
        now += passed
        if rate.summary_at() is not None and now >= rate.summary_at():
            summed += rate.summary(()).counts["notices"]
            rate.summed_up()
        offered += 1
        sent += [(now, each.kind) for each in rate.passing([notice(kind=kind)], now)]
        lately = [kind for at, kind in sent if now - at < WINDOW]
        assert len(lately) <= MOST
        assert sum(kind in OF_LETTERS for kind in lately) <= MOST_OF_LETTERS
    held = rate.summary(())
    assert offered == len(sent) + summed + (held.counts["notices"] if held else 0)


HISTORIES = st.lists(
    st.tuples(
        st.floats(0, 200),
        st.sampled_from(["dead", "died", "pause", "resume", "open", "close", "lost", "found", "budget", "expire", "look"]),
        st.sampled_from(["orders", "parcels"]),
        st.integers(0, 5),
    ),
    max_size=150,
)


@settings(max_examples=60)
@given(HISTORIES)
def test_whatever_happens_ends_follow_what_was_told_and_groups_are_told_once(history):
    watch, now, told, open_ = Watch(COMMANDS), NOW, [], Counter()
    for passed, what, source, number in history:
        now += passed
        _happens(watch, what, source, number, now)
        told += [(now, each) for each in watch.due(now)]
    told += [(now, each) for each in watch.due(now, is_last=True)]
    groups = [each.fingerprint for _, each in told if each.kind is Kind.NEW_GROUP]
    assert len(groups) == len(set(groups))
    for _, each in told:
        assert each.bad
        assert each.doing
        assert each.since <= now
        if each.is_end:
            assert open_[each.subject], "an end of something that was never told"
            open_[each.subject] = 0
        elif each.kind in (Kind.PAUSED, Kind.OUTAGE):
            assert each.is_again == bool(open_[each.subject])
            open_[each.subject] = 1


def _happens(watch, what, source, number, now):
    pause, evidence = OperatorPause("ada", "", 0.0), outage(dependency=f"billing-{number}", since=now - 1)
    changes = {
        "pause": [Paused(pause)],
        "resume": [Resumed(1.0, pause)],
        "open": [Opened(evidence)],
        "close": [Closed(evidence.dependency, 1.0)],
        "budget": [BudgetUsedUp(3, 0.2)],
        "expire": [Expiring(10, 20)],
    }
    if what in changes:
        heard(watch, changes[what], now, source)
    elif what == "dead":
        watch.hear(dead(f"2-{number}", source, now), now)
    elif what == "died":
        watch.hear(news.Died(source, "2-abc", "x"), now)
    elif what == "lost":
        watch.hear(news.lost_broker(source, "gone", now, COMMANDS), now)
    elif what == "found":
        watch.hear(news.found_broker(source), now)


def test_more_pauses_and_outages_than_can_be_known_are_not_kept():
    watch = Watch(COMMANDS)
    for number in range(watching.MOST_LASTING + 10):
        heard(watch, [Opened(outage(dependency=f"d{number}"))], NOW)
    assert len(watch._lasting) == watching.MOST_LASTING
