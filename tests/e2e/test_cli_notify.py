"""Notices of real consumers, as they arrive at a real server; and `unpoison notify`."""

import signal
import subprocess
import threading
from contextlib import contextmanager

import pytest

from tests.e2e.command_line import UNPOISON, environment, in_this_process, unpoison
from tests.notified import webhooks
from unpoison import App
from unpoison.testing.isolation.diary import wait_until

SHOP = """
import ctypes
from unpoison import App

app = App({url!r}, notify=[{hook!r}])

@app.consumer("orders", max_attempts=1, concurrency=2, admission=None)
def ship(order: bytes):
    if order == b"bug":
        raise KeyError("piano")
    if order.startswith(b"card "):
        raise ValueError("refused " + order.decode() + " at https://u:hush@pay.example/x")
    if order == b"crash":
        ctypes.string_at(0)
    print("shipped", order.decode(), flush=True)
"""


PARCELS = """
@app.consumer("parcels")
def send(parcel: bytes):
    pass
"""


@pytest.fixture
def hooks():
    with webhooks() as server:
        yield server


def shop(folder, hooks, *bodies, url="sqlite:///shop.db"):
    url = url.replace("sqlite:///", f"sqlite:///{folder}/")
    (folder / "shop.py").write_text(SHOP.format(url=url, hook=hooks.url))
    app = App(url)
    app.publish_many("orders", list(bodies))
    return app


def test_of_some_poison_exactly_its_groups_are_told(tmp_path, hooks):
    shop(tmp_path, hooks, b"1", b"bug", b"card 4111111111111111", b"2", b"bug", b"3").close()
    ended = unpoison("run", "shop:app", "--until-empty", cwd=tmp_path)
    assert ended.code == 0
    assert sorted(hooks.kinds()) == ["new-group", "new-group"]
    bug, card = sorted(hooks.taken, key=lambda each: each["error"])
    assert (bug["error"], bug["counts"], bug["source"], bug["app"]) == ("KeyError: piano", {"dead": 2}, "orders", "shop:app")
    assert card["error"] == "ValueError: refused card * at *"
    assert not [secret for secret in ("4111", "hush") if secret in card["text"]]
    for step in bug["todo"]:
        assert step["command"].startswith("unpoison dlq ")
    looked = unpoison(*bug["todo"][0]["command"].split()[1:], cwd=tmp_path)
    assert (looked.code, "KeyError" in looked.text) == (0, True), "the command in a notice works as it stands"
    again = unpoison(*bug["todo"][1]["command"].split()[1:], "--yes", cwd=tmp_path)
    assert (again.code, "2" in again.text) == (0, True)


def test_after_a_restart_only_what_is_new_is_told_and_nothing_of_successes(tmp_path, hooks):
    app = shop(tmp_path, hooks, b"bug")
    assert unpoison("run", "shop:app", "--until-empty", cwd=tmp_path).code == 0
    assert hooks.kinds() == ["new-group"]
    app.publish_many("orders", [b"bug", b"1", b"card 1"])
    app.close()
    assert unpoison("run", "shop:app", "--until-empty", cwd=tmp_path).code == 0
    assert [each["error"] for each in hooks.taken] == ["KeyError: piano", "ValueError: refused card * at *"]


def test_workers_that_die_and_a_dlq_that_grows_are_told_once(tmp_path, hooks):
    shop(tmp_path, hooks, *[b"crash"] * 6, *[b"bug"] * 10).close()
    assert unpoison("run", "shop:app", "--until-empty", cwd=tmp_path).code == 0
    assert sorted(hooks.kinds()) == ["crash-loop", "growing", "new-group", "new-group"]
    (loop,), (growing,) = hooks.of("crash-loop"), hooks.of("growing")
    assert loop["counts"]["deaths"] >= 5
    assert growing["counts"]["dead"] >= 10


def test_a_server_that_does_not_answer_delays_no_message_and_the_end_only_for_a_moment(tmp_path, hooks):
    freed = threading.Event()
    hooks.before = lambda: freed.wait(60)
    try:
        shop(tmp_path, hooks, b"bug", *[b"1"] * 50).close()
        ended = unpoison("run", "shop:app", "--until-empty", cwd=tmp_path)
        assert (ended.code, ended.text.count("shipped"), hooks.taken) == (0, 50, [])
        assert "1 notice could not be sent within 2 s after the end of the run." in ended.err
    finally:
        freed.set()


def test_a_server_that_refuses_costs_one_line_without_what_is_secret(tmp_path, hooks):
    hooks.answers = [(403, {})] * 10
    shop(tmp_path, hooks, b"bug", b"card 1").close()
    ended = unpoison("run", "shop:app", "--until-empty", cwd=tmp_path)
    assert (ended.code, len(hooks.requests)) == (0, 2)
    assert ended.err.count("could not be sent to http://127.0.0.1:") == 1
    assert not [secret for secret in ("T0PSECRET", "HUSHHUSH") if secret in ended.err]


@pytest.fixture(scope="module")
def database(postgresql):
    return postgresql.fresh()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    return "sqlite:///shop.db" if request.param == "sqlite" else request.getfixturevalue("database")


@contextmanager
def consumer(folder):
    process = subprocess.Popen(
        [*UNPOISON, "run", "shop:app"], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_of_two_consumers_of_a_fleet_one_tells(tmp_path, hooks, url):
    app = shop(tmp_path, hooks, url=url)
    with consumer(tmp_path), consumer(tmp_path):
        dlq = app.dlq("orders")
        for count in range(2, 9, 2):
            app.publish_many("orders", [b"bug", b"bug"])
            wait_until(lambda: dlq.count() == count, lambda: f"{dlq.count()} of {count} dead letters")  # noqa: B023 - called here
    assert hooks.kinds() == ["new-group"]
    app.close()


@pytest.mark.long
def test_a_pause_by_a_person_and_one_by_a_bad_deploy_are_told_after_a_minute_and_their_ends(tmp_path, hooks):
    app = shop(tmp_path, hooks)
    (tmp_path / "shop.py").write_text((tmp_path / "shop.py").read_text().replace(", admission=None", "") + PARCELS)
    app.publish("parcels", b"1")
    app.publish_many("orders", [b"bug"] * 200)
    on = ("--app", "shop:app")
    assert in_this_process("pause", "parcels", *on, "--reason", "stock-taking", cwd=tmp_path).code == 0
    with consumer(tmp_path):
        wait_until(lambda: hooks.kinds().count("paused") == 2, lambda: f"{hooks.kinds()}", patience=90)
        assert in_this_process("resume", "parcels", *on, cwd=tmp_path).code == 0
        wait_until(lambda: "resumed" in hooks.kinds(), lambda: f"{hooks.kinds()}")
    assert sorted(hooks.kinds()) == ["growing", "new-group", "paused", "paused", "resumed"]
    by_source = {each["source"]: each for each in hooks.of("paused")}
    assert by_source["parcels"]["todo"][0]["command"] == "unpoison resume parcels --app shop:app"
    assert by_source["orders"]["title"] == "'orders' is paused: too many dead letters"
    assert by_source["orders"]["counts"]["would_be_dead"] >= 10
    app.close()


BILLING = """
import os
from unpoison import RetryLater, Breaker

@app.consumer("bills", breaker=Breaker())
def pay(bill: bytes):
    if bill.startswith(b"pay") and not os.path.exists("billing-is-up"):
        raise RetryLater(1, dependency="billing")
"""


@pytest.mark.long
def test_an_outage_and_its_end_are_told_while_other_messages_go_on(tmp_path, hooks):
    app = shop(tmp_path, hooks)
    (tmp_path / "shop.py").write_text((tmp_path / "shop.py").read_text() + BILLING)
    mixed = [body for number in range(20) for body in (b"pay %d" % number, b"other", b"other", b"other")]
    app.publish_many("bills", mixed)
    with consumer(tmp_path):
        wait_until(lambda: hooks.kinds() == ["outage"], lambda: f"{hooks.kinds()}", patience=60)
        (tmp_path / "billing-is-up").touch()
        wait_until(lambda: "outage-over" in hooks.kinds(), lambda: f"{hooks.kinds()}", patience=90)
    assert hooks.kinds() == ["outage", "outage-over"]
    began, ended = hooks.taken
    assert (began["title"], began["counts"]["messages"] >= 10) == ("'bills': billing is down", True)
    assert ended["title"] == "'bills': the outage of billing is over"
    app.close()


# unpoison notify


def test_a_test_notice_and_what_came_back(tmp_path, hooks):
    shown = in_this_process("notify", hooks.url, cwd=tmp_path)
    place = hooks.url.partition("/hooks")[0]
    assert (shown.code, shown.text) == (0, f"{place}/***: sent: 200 ok\n")
    assert [(each["kind"], each["title"]) for each in hooks.taken] == [("test", "This is a test")]
    hooks.answers = [(404, {})]
    failed = in_this_process("notify", "--json", cwd=tmp_path, UNPOISON_NOTIFY=f"{hooks.url} slack+{hooks.url}")
    assert failed.code == 1
    assert [(each["target"], each["sent"]) for each in failed.json] == [(f"{place}/***", False), (f"slack+{place}/***", True)]
    assert not [secret for secret in ("T0PSECRET", "HUSHHUSH") if secret in failed.text]


def test_a_test_notice_to_whom_an_app_notifies(tmp_path, hooks):
    shop(tmp_path, hooks).close()
    assert unpoison("notify", "--app", "shop:app", cwd=tmp_path).code == 0
    assert hooks.taken[0]["app"] == "shop:app"


def test_notify_says_what_it_needs(tmp_path):
    nobody = in_this_process("notify", cwd=tmp_path)
    assert (nobody.code, "Nobody is to be notified" in nobody.err) == (1, True)
    both = in_this_process("notify", "http://h/", "--app", "shop:app", cwd=tmp_path)
    assert (both.code, "Give one of them" in both.err) == (2, True)
    wrong = in_this_process("notify", "xmpp://h/", cwd=tmp_path)
    assert (wrong.code, "none of the forms" in wrong.err) == (1, True)
