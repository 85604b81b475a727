"""`unpoison status` on real files and servers."""

import signal
import subprocess
import time

import pytest

from tests.e2e.command_line import COLOUR, UNPOISON, dead_letters, environment, in_this_process, on_terminal, unpoison
from unpoison import App
from unpoison.brokers import broker_for
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.port.broker import TellsOldest
from unpoison.store.choice import store_for
from unpoison.store.port import OPEN, OPERATOR, ConsumerSign, Pause, SharedCircuit

URL = "sqlite:///shop.db"
APP = """
from unpoison import App

app = App({url!r}{store})

@app.consumer("orders")
def ship(order: dict) -> None: ...

@app.consumer("emails")
def send(email: dict) -> None: ...
"""


def publish(folder, *sources):
    app = App(f"sqlite:///{folder / 'shop.db'}")
    for source in sources:
        app.publish(source, b"1")
    app.close()


def app_file(folder, url=URL, store=""):
    (folder / "shop.py").write_text(APP.format(url=url, store=store))


@pytest.fixture
def known(tmp_path):
    """A file with three sources, one of them paused, one with a consumer and an outage."""
    publish(tmp_path, "orders", "orders", "emails", "refunds")
    store = store_for(f"sqlite:///{tmp_path / 'shop.db'}")
    store.open()
    at = time.time()
    circuit = SharedCircuit("emails", "smtp:25", True, OPEN, at - 60, 12, ("TimeoutError",), at + 5, 8.0, "web-1:7", 0, at)
    store.exchange(ConsumerSign("web-1:7", "emails", "1.4.2", at, at, "running"), [circuit])
    store.pause(Pause("orders", OPERATOR, "migration", "eva@web-1"))
    store.close()
    return tmp_path


def test_in_a_pipe_it_is_plain_and_each_text_is_one_line(known):
    ended = in_this_process("status", "--url", URL, cwd=known)
    heading, emails, orders, refunds, *rest = ended.text.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert heading.split() == ["SOURCE", "STATE", "READY", "DELAYED", "RUNNING", "DEAD", "OLDEST"]
    assert emails.split()[:7] == ["emails", "running,", "1", "outage", "1", "0", "0"]
    assert orders.split()[:3] == ["orders", "paused", "2"]
    assert refunds.split()[:4] == ["refunds", "no", "consumer", "1"]
    assert [line for line in rest if line.startswith("'emails': smtp:25 is down since ") and line.endswith("ends the outage.")]
    assert f"      unpoison resume orders --url {URL}" in rest
    assert rest[-2].split()[:4] == ["CONSUMER", "SOURCE", "VERSION", "STATE"]
    assert rest[-1].split()[:4] == ["web-1:7", "emails", "1.4.2", "running"]
    assert "\x1b" not in ended.text


def test_on_a_terminal_it_fits(known):
    lines = COLOUR.sub("", on_terminal("status", cwd=known, columns=80, UNPOISON_URL=URL).text).splitlines()
    assert max(map(len, lines)) <= 80
    assert "      unpoison resume orders" in lines


def test_as_json(known):
    ended = in_this_process("status", "--url", URL, "--json", cwd=known)
    assert (ended.code, ended.err) == (0, "")
    assert (ended.json["broker"], ended.json["store"], ended.json["problem"]) == (URL, URL, None)
    emails, orders, refunds = ended.json["sources"]
    assert [each["state"] for each in (emails, orders, refunds)] == ["running", "paused", "no consumer"]
    assert {"ready": 2, "delayed": 0, "running": 0, "dead": 0, "deleted_after_seconds": None}.items() <= orders.items()
    assert 0 < orders["oldest_seconds"] < 60
    (pause,) = orders["pauses"]
    assert (pause["kind"], pause["by"], pause["reason"]) == ("operator", "eva@web-1", "migration")
    assert pause["since"].endswith("+00:00")
    (outage,) = emails["outages"]
    assert (outage["dependency"], outage["messages"], outage["samples"]) == ("smtp:25", 12, ["TimeoutError"])
    (consumer,) = emails["consumers"]
    assert (consumer["consumer"], consumer["code_version"]) == ("web-1:7", "1.4.2")


def test_only_the_sources_that_are_named_are_shown(known):
    rows = in_this_process("status", "refunds", "orders", "--url", URL, "--json", cwd=known).json["sources"]
    assert [each["source"] for each in rows] == ["refunds", "orders"]
    mistyped = in_this_process("status", "ordres", "--url", URL, cwd=known)
    assert (mistyped.code, mistyped.text) == (1, "")
    assert mistyped.err == (f"Error: Nobody consumes 'ordres', and it does not exist at {URL}. Did you mean 'orders'?\n")


def test_dead_letters_are_counted(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    (orders,) = in_this_process("status", "--url", url, "--json", cwd=tmp_path).json["sources"]
    assert (orders["ready"], orders["dead"], orders["state"], orders["oldest_seconds"]) == (0, 2, "no consumer", None)


def test_an_app_shows_its_sources_also_one_that_was_never_used(tmp_path):
    app_file(tmp_path)
    publish(tmp_path, "orders", "other")
    ended = unpoison("status", "--app", "shop:app", cwd=tmp_path)
    assert ended.code == 0
    assert [line.split()[:4] for line in ended.text.splitlines()[1:3]] == [
        ["orders", "no", "consumer", "1"],
        ["emails", "no", "consumer", "unknown"],
    ]
    assert "'emails': Source 'emails' does not exist in" in ended.text


def test_it_changes_nothing(tmp_path):
    publish(tmp_path, "orders")
    before = (tmp_path / "shop.db").read_bytes()
    assert in_this_process("status", "--url", URL, cwd=tmp_path).code == 0
    assert (tmp_path / "shop.db").read_bytes() == before
    missing = in_this_process("status", "--url", "sqlite:///other.db", cwd=tmp_path)
    assert missing.code == 1
    assert "does not exist" in missing.err
    assert not (tmp_path / "other.db").exists()


def test_a_broker_that_was_never_used_has_no_sources(tmp_path):
    assert in_this_process("migrate", URL, cwd=tmp_path).code == 0
    said = "No sources: unpoison has not been used with any source there.\n"
    assert in_this_process("status", "--url", URL, cwd=tmp_path).text == said
    assert in_this_process("status", "--url", URL, "--json", cwd=tmp_path).json["sources"] == []


def test_without_a_store_the_broker_is_asked_and_one_line_says_what_is_missing(known):
    ended = in_this_process("status", "--url", URL, "--store", "", cwd=known)
    assert ended.code == 0
    assert ended.text.splitlines()[1].split()[:3] == ["emails", "unknown", "1"]
    assert ended.text.splitlines()[-1].startswith("Pauses, outages and consumers are not known here: that needs a store")
    document = in_this_process("status", "--json", cwd=known, UNPOISON_URL=URL, UNPOISON_STORE="").json
    assert document["store"] is None
    assert {each["pauses"] for each in document["sources"]} == {None}


def test_a_broker_that_is_away_is_one_sentence_at_once(tmp_path):
    app_file(tmp_path, "postgresql://u:secret@127.0.0.1:1/x", store=", store='sqlite:///shop.db'")
    ended = unpoison("status", "--app", "shop:app", cwd=tmp_path)
    assert (ended.code, ended.text, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("Error: PostgreSQL at 'postgresql://u:***@127.0.0.1:1/x'")


def test_a_store_that_no_consumer_has_made_yet_is_empty_but_one_named_wrongly_is_an_error(known):
    app_file(known, store=", store='sqlite:///later.db'")
    ended = unpoison("status", "orders", "--app", "shop:app", cwd=known)
    assert (ended.code, ended.text.splitlines()[1].split()[:3]) == (0, ["orders", "no", "consumer"])
    wrong = in_this_process("status", "--url", URL, "--store", "sqlite:///later.db", cwd=known)
    assert (wrong.code, wrong.text) == (1, "")
    assert "later.db' does not exist" in wrong.err
    assert not (known / "later.db").exists()


def test_a_store_that_is_away_is_an_error_after_what_the_broker_knows(known):
    away = "postgresql://u:secret@127.0.0.1:1/x"
    ended = in_this_process("status", "--url", URL, "--store", away, cwd=known)
    assert ended.code == 1
    assert ended.text.splitlines()[1].split()[:3] == ["emails", "unknown", "1"]
    assert ended.err.startswith("Error: The store at 'postgresql://u:***@127.0.0.1:1/x' cannot be used")
    assert "secret" not in ended.text + ended.err
    document = in_this_process("status", "--url", URL, "--store", away, "--json", cwd=known)
    assert (document.code, document.json["problem"][:9]) == (1, "The store")


def test_a_broker_that_lives_in_one_process_cannot_be_seen(tmp_path):
    ended = in_this_process("status", "--url", "memory://", cwd=tmp_path)
    assert ended.code == 1
    assert "'memory://' lives in one process" in ended.err


def test_what_is_missing_is_wrong_usage(tmp_path):
    assert in_this_process("status", cwd=tmp_path).code == 2
    assert "Give one of them" in in_this_process("status", "--app", "a:b", "--url", URL, cwd=tmp_path).err


def test_it_can_be_watched_until_ctrl_c(known):
    command = [*UNPOISON, "status", "emails", "--url", URL, "--watch"]
    process = subprocess.Popen(command, cwd=known, stdout=subprocess.PIPE, text=True, env=environment())
    rows = (line.split()[1] for line in process.stdout if line.startswith("emails "))
    assert next(rows) == "running,"
    store = store_for(f"sqlite:///{known / 'shop.db'}")
    store.open()
    store.pause(Pause("emails", OPERATOR, "migration", "eva@web-1"))
    store.close()
    assert "paused," in (next(rows), next(rows))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_store_that_goes_away_while_it_is_watched_is_told_and_asked_again(known, monkeypatch):
    looks = []

    def wait(seconds):
        looks.append(seconds)
        if len(looks) == 1:
            (known / "shop.db").rename(known / "gone.db")
        elif len(looks) == 2:
            (known / "gone.db").rename(known / "shop.db")
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr("unpoison.cli.status.time.sleep", wait)
    ended = in_this_process("status", "orders", "--url", URL, "--watch", cwd=known)
    first, second, third = ended.text.split(" until Ctrl-C\n")[1:]
    assert (ended.code, looks) == (0, [2.0] * 3)
    assert "orders" in first
    assert second.strip().startswith("Error: ")
    assert "eva@web-1" in third


def test_watching_never_ends_so_it_is_no_document(known):
    ended = in_this_process("status", "--url", URL, "--watch", "--json", cwd=known)
    assert ended.code == 2
    assert "--json prints one document, and --watch never ends. Leave out one of them." in " ".join(ended.err.split())


# Brokers that know how long the oldest message waits


@pytest.fixture(params=["sqlite", "postgresql", "redis", "nats"])
def server(request, tmp_path):
    return f"sqlite:///{tmp_path / 'shop.db'}" if request.param == "sqlite" else request.getfixturevalue(request.param).fresh()


def test_the_age_of_the_oldest_ready_message_is_known(server):
    app, broker = App(server), broker_for(server)
    assert isinstance(broker, TellsOldest)
    broker.open(["orders"])
    try:
        assert broker.oldest("orders") is None
        app.publish("orders", b"later", delay=3_600)
        assert broker.oldest("orders") is None
        before = time.monotonic()
        app.publish("orders", b"1")
        while (first := broker.oldest("orders")) < 0.01:
            assert first >= 0
        app.publish("orders", b"2")
        assert first <= broker.oldest("orders") <= time.monotonic() - before + 0.1
    finally:
        broker.close()
        app.close()


@pytest.mark.parametrize("server", ["sqlite", "postgresql", "redis"], indirect=True)
def test_what_a_consumer_has_no_longer_waits_and_what_was_delayed_waits_from_its_time_on(server):
    app, broker = App(server), broker_for(server)
    assert isinstance(broker, TellsOldest)
    broker.open(["orders"])
    try:
        app.publish_many("orders", [b"1", b"2"])
        while broker.depth("orders").leased < 2:
            broker.fetch("orders", 2)
        assert broker.oldest("orders") is None
        before = time.monotonic()
        app.publish("orders", b"3", delay=0.5)
        while (age := broker.oldest("orders")) is None:
            pass
        assert 0 <= age <= time.monotonic() - before - 0.4
    finally:
        broker.close()
        app.close()


def test_in_redis_the_id_of_an_entry_tells_when_it_was_added_unless_its_producer_chose_it(redis):
    url = redis.fresh()
    broker = RedisBroker(url)
    broker.open(["orders"])
    client = broker.connection
    try:
        two_hours_ago = int((time.time() - 7_200) * 1_000)
        client.ask("orders", ("XADD", "orders", f"{two_hours_ago}-0", "body", "1"))
        assert 7_200 <= broker.oldest("orders") < 7_260
        client.ask("orders", ("DEL", "orders"))
        client.ask("orders", ("XADD", "orders", "1-1", "body", "1"))
        assert broker.oldest("orders") is None
    finally:
        broker.close()
