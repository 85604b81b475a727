"""`unpoison pause` and `resume`: what they say, and that running consumers obey."""

import getpass
import re
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

from tests.e2e.command_line import UNPOISON, environment, in_this_process, unpoison
from unpoison import App
from unpoison.store.choice import store_for
from unpoison.store.port import ADMISSION, OPERATOR, PAUSING, ConsumerSign, Pause, SharedCircuit

URL = "sqlite:///shop.db"
ON = ("--url", URL)
ME = f"{getpass.getuser()}@{socket.gethostname()}"
NOBODY = {"SUDO_USER": ""}
APP = """
from unpoison import App

app = App({url!r}, store={store!r})

@app.consumer("orders", concurrency=2)
def ship(order: bytes):
    print("shipped", order.decode(), flush=True)
"""


@pytest.fixture
def shop(tmp_path):
    """A file with two sources that nobody consumes."""
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    app.publish("orders", b"1")
    app.publish("refunds", b"1")
    app.close()
    return tmp_path


@contextmanager
def the_store(folder):
    store = store_for(f"sqlite:///{folder / 'shop.db'}")
    store.open()
    try:
        yield store
    finally:
        store.close()


# With a consumer


class Running:
    """A consumer as a process, and its output line by line."""

    def __init__(self, process):
        self._process = process
        self.lines = []

    def until(self, text):
        for line in self._process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        pytest.fail(f"it ended without saying {text!r}: {''.join(self.lines)}")
        raise AssertionError

    def until_all(self, *texts):
        missing = [text for text in texts if not any(text in line for line in self.lines)]
        while missing:
            line = self.until("")
            missing = [text for text in missing if text not in line]

    def shipped(self):
        return [line.split()[-1] for line in self.lines if "shipped" in line]


@contextmanager
def consumer(folder):
    process = subprocess.Popen(
        [*UNPOISON, "run", "shop:app"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(UNPOISON_CODE_VERSION="1.4.2"),
    )
    try:
        yield Running(process)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def is_obeyed_by_a_running_consumer(folder, url, store):
    (folder / "shop.py").write_text(APP.format(url=url, store=store))
    shop = ("--url", url, *(("--store", store) if store else ()))
    app = App(url, store=store)
    app.publish("orders", b"1")
    with consumer(folder) as running:
        running.until("shipped 1")
        paused = in_this_process("pause", "orders", *shop, "--reason", "billing migration", cwd=folder, **NOBODY)
        assert (paused.code, paused.text.splitlines()[0]) == (0, f"'orders' is paused by {ME}: billing migration")
        assert "1 consumer hears it within about 2 s" in paused.text
        assert f"'orders' is paused by {ME} since" in running.until("paused by")
        app.publish_many("orders", [b"2", b"3"])
        app.close()
        shown = in_this_process("status", *shop, cwd=folder).text
        assert shown.splitlines()[1].split()[:3] == ["orders", "paused", "2"]
        assert re.search(rf"'orders' is paused by {ME} since [-\d]+ [:\d]+ \S+ \(\d+ s ago\): billing migration\.", shown)
        assert shown.splitlines()[-1].split()[1:3] == ["orders", "1.4.2"]
        resumed = in_this_process("resume", "orders", *shop, cwd=folder)
        assert resumed.text.startswith("'orders' is resumed. 1 consumer hears it within about 2 s, and starts slowly at first.")
        assert f"Ended the pause by {ME} since" in resumed.text
        running.until("resumed after")
        assert running.shipped() == ["1"]
        running.until("shipped")
        running.until("shipped")
        assert sorted(running.shipped()) == ["1", "2", "3"]
        (orders,) = in_this_process("status", *shop, "--json", cwd=folder).json["sources"]
        assert (orders["state"], orders["pauses"]) == ("running", [])


def test_a_pause_and_a_resume_are_obeyed_by_a_running_consumer(tmp_path):
    is_obeyed_by_a_running_consumer(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", None)


@pytest.mark.long
def test_a_pause_on_a_server_is_obeyed_through_a_store_beside_it(tmp_path, redis, postgresql):
    is_obeyed_by_a_running_consumer(tmp_path, redis.fresh(), postgresql.fresh())


def test_a_consumer_that_starts_while_its_source_is_paused_starts_no_message(shop):
    (shop / "shop.py").write_text(APP.format(url=URL, store=None))
    paused = in_this_process("pause", "orders", *ON, "--reason", "migration", cwd=shop)
    assert (
        "No consumer that has this store is alive. One that is started later starts no message. If consumers run" in paused.text
    )
    with consumer(shop) as running:
        running.until("is paused by")
        assert in_this_process("resume", "orders", *ON, cwd=shop).code == 0
        running.until("resumed after")
        assert running.shipped() == []
        running.until("shipped 1")


FAILING = """
import os
from unpoison import App
from unpoison.control.options import Breaker

app = App({url!r})

@app.consumer("orders", depends_on="billing", breaker=Breaker(first_probe=60, longest_probe=60))
def ship(order: bytes):
    if os.path.exists("down"):
        raise ConnectionError("billing does not answer")
    print("shipped", flush=True)

@app.consumer("emails")
def send(email: bytes):
    if os.path.exists("down"):
        raise KeyError("vat")
    print("sent", flush=True)
"""


@pytest.mark.long
def test_a_resume_ends_an_outage_and_a_bad_deploy_in_a_running_consumer(tmp_path):
    """Neither would be tried again within a minute."""
    (tmp_path / "shop.py").write_text(FAILING.format(url=URL))
    (tmp_path / "down").touch()
    app = App(f"sqlite:///{tmp_path / 'shop.db'}")
    app.publish_many("orders", [b"1"] * 30)
    app.publish_many("emails", [b"1"] * 100)
    app.close()
    with consumer(tmp_path) as running:
        running.until_all("'orders' is paused: billing is down", "'emails' is paused: of ")
        while {each["state"] for each in shown(tmp_path)} != {"outage", "paused"}:
            pass  # the store is told in a moment
        (tmp_path / "down").unlink()
        assert "Ended the outage of billing since" in in_this_process("resume", "orders", *ON, cwd=tmp_path).text
        assert "too many dead letters, by" in in_this_process("resume", "emails", *ON, cwd=tmp_path).text
        running.until_all("the outage of billing is over", "'orders' resumed after", "'emails' resumed after", "shipped", "sent")
        assert {each["state"] for each in shown(tmp_path)} == {"running"}


def shown(folder):
    return in_this_process("status", *ON, "--json", cwd=folder).json["sources"]


# What they say


def test_what_is_paused_already_says_by_whom_and_changes_nothing(shop):
    with the_store(shop) as store:
        store.pause(Pause("orders", OPERATOR, "migration", "eva@web-1"))
    again = in_this_process("pause", "orders", *ON, "--reason", "other", cwd=shop)
    assert (again.code, again.err) == (0, "")
    assert re.fullmatch(
        r"'orders' is paused already, by eva@web-1 since .* \(\d+ s ago\): migration\. Nothing was changed\.\n", again.text
    )
    document = in_this_process("pause", "orders", *ON, "--reason", "other", "--json", cwd=shop).json
    assert (document["changed"], document["by"], document["reason"]) == (False, "eva@web-1", "migration")


def test_pause_as_json(shop):
    ended = in_this_process("pause", "orders", *ON, "--reason", " migration ", "--json", cwd=shop, **NOBODY)
    assert (ended.code, ended.err) == (0, "")
    document = ended.json
    assert document.pop("since").endswith("+00:00")
    assert document == {
        "source": "orders",
        "kind": "operator",
        "reason": "migration",
        "by": ME,
        "code_version": None,
        "evidence": {},
        "changed": True,
        "consumers": 0,
    }


def test_with_sudo_the_person_behind_it_is_told(shop):
    ended = in_this_process("pause", "orders", *ON, "--reason", "migration", cwd=shop, SUDO_USER="eva")
    assert ended.text.startswith(f"'orders' is paused by eva@{socket.gethostname()}: migration\n")


def test_the_command_to_resume_names_the_same_app_or_broker(shop):
    ended = in_this_process("pause", "orders", *ON, "--store", "sqlite:///my store.db", "--reason", "why", cwd=shop)
    assert ended.text.splitlines()[-1] == f"To resume it: unpoison resume orders --url {URL} --store 'sqlite:///my store.db'"


def test_a_mistyped_source_is_refused_with_the_closest_name(shop):
    ended = in_this_process("pause", "ordres", *ON, "--reason", "migration", cwd=shop)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == f"Error: Nobody consumes 'ordres', and it does not exist at {URL}. Did you mean 'orders'?\n"
    far = in_this_process("pause", "nowhere", *ON, "--reason", "migration", cwd=shop)
    assert far.err.endswith("Its sources: 'orders', 'refunds'\n")
    with the_store(shop) as store:
        assert store.pauses() == []


@pytest.mark.parametrize("command", [("pause", "--reason", "migration"), ("resume",)])
def test_a_mistyped_file_is_refused_and_not_created(shop, command):
    ended = in_this_process(*command, "orders", "--url", "sqlite:///shp.db", cwd=shop)
    assert (ended.code, ended.text) == (1, "")
    said = "Nobody consumes 'orders', and there is nothing of unpoison at 'sqlite:///shp.db'. Check the URL."
    assert ended.err == f"Error: {said}\n"
    assert sorted(file.name for file in shop.iterdir() if file.suffix == ".db") == ["shop.db"]


def test_a_mistyped_source_is_not_said_to_be_resumed(shop):
    with the_store(shop) as store:
        store.pause(Pause("orders", OPERATOR, "migration", "eva@web-1"))
    ended = in_this_process("resume", "ordres", *ON, cwd=shop)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == f"Error: Nobody consumes 'ordres', and it does not exist at {URL}. Did you mean 'orders'?\n"


@pytest.mark.long
def test_a_source_that_a_server_lacks_is_told_without_the_commands_that_would_create_it(nats, tmp_path):
    shop = ("--url", nats.fresh(), "--store", "sqlite:///fleet.db")
    ended = in_this_process("pause", "orders", *shop, "--reason", "migration", cwd=tmp_path)
    assert (ended.code, ended.text, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("Error: Nobody consumes 'orders', and it cannot be looked at: Source 'orders' lacks")
    assert ended.err.endswith("Check the name.\n")


def test_a_source_that_is_paused_can_be_resumed_while_the_broker_is_away(shop):
    away = ("--url", "redis://127.0.0.1:1/0", "--store", URL)
    with the_store(shop) as store:
        store.pause(Pause("orders", OPERATOR, "migration", "eva@web-1"))
    assert in_this_process("resume", "orders", *away, cwd=shop).code == 0
    again = in_this_process("resume", "orders", *away, cwd=shop)
    assert (again.code, again.err) == (0, "")
    assert again.text.startswith("'orders' is not paused")


def test_before_the_first_run_a_pause_is_shown_and_nobody_is_told_of_tables(tmp_path):
    (tmp_path / "shop.py").write_text(APP.format(url=URL, store=None))
    assert unpoison("pause", "orders", "--app", "shop:app", "--reason", "migration", cwd=tmp_path).code == 0
    shown = unpoison("status", "--app", "shop:app", cwd=tmp_path)
    assert shown.code == 0
    assert "'orders': There is nothing of unpoison at" in shown.text
    assert "is paused by" in shown.text
    assert "create=False" not in shown.text


def test_a_source_that_somebody_consumes_need_not_exist_yet(shop):
    (shop / "shop.py").write_text(APP.format(url="sqlite:///new.db", store=None))
    assert unpoison("pause", "orders", "--app", "shop:app", "--reason", "migration", cwd=shop).code == 0
    with the_store(shop) as store:
        store.exchange(ConsumerSign("web-1:7", "emails", None, 0.0, 0.0, "running"), [])
    assert unpoison("pause", "emails", *ON, "--reason", "migration", cwd=shop).code == 0


@pytest.mark.parametrize(("command", "verb"), [(("pause", "--reason", "migration"), "Pausing"), (("resume",), "Resuming")])
def test_without_a_store_one_sentence_says_what_is_needed(tmp_path, command, verb):
    ended = in_this_process(*command, "orders", "--url", "amqp://mq/shop", cwd=tmp_path)
    assert (ended.code, ended.text, ended.err.count("\n")) == (1, "", 1)
    assert ended.err == (
        f"Error: {verb} needs a store that all consumers share, and 'amqp://mq/shop' has none: give the app one, as in "
        f"App(…, store='postgresql://db.example.com/shop').\n"
    )


def test_a_store_that_is_away_is_one_sentence(tmp_path):
    away = "postgresql://u:secret@127.0.0.1:1/x"
    ended = in_this_process("resume", "orders", "--url", "amqp://mq/shop", "--store", away, cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: The store at 'postgresql://u:***@127.0.0.1:1/x' cannot be used")


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
def test_a_pause_needs_a_reason_that_people_can_read(shop, reason):
    assert in_this_process("pause", "orders", *ON, cwd=shop).code == 2
    assert in_this_process("pause", "orders", *ON, "--reason", reason, cwd=shop).code == 2


def test_resume_ends_every_pause_and_every_outage_of_the_source(shop):
    at = time.time()
    with the_store(shop) as store:
        store.pause(Pause("orders", OPERATOR, "migration", "eva@web-1"))
        store.pause(
            Pause(
                "orders",
                ADMISSION,
                "many",
                "web-1:7",
                0.0,
                "1.4.2",
                {"dead": 51, "ended": 251, "within": 60.0, "samples": ["KeyError"]},
            )
        )
        for source in ("orders", "refunds"):
            sign = ConsumerSign("web-1:7", source, "1.4.2", at, at, "paused")
            store.exchange(
                sign, [SharedCircuit(source, "billing", True, PAUSING, at - 60, 12, ("Timeout",), at + 5, 8.0, "web-1:7", 0, at)]
            )
    ended = in_this_process("resume", "orders", *ON, cwd=shop)
    first, *rest = ended.text.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert first == "'orders' is resumed. 1 consumer hears it within about 2 s, and starts slowly at first."
    counts = "of 251 messages, 51 were to become dead letters"
    assert [re.sub(r" since [^)]*\)", "", line) for line in rest] == [
        f"Ended the pause because of too many dead letters, by consumer web-1:7 (version 1.4.2): {counts} (KeyError)",
        "Ended the pause by eva@web-1: migration",
        "Ended the outage of billing: 12 different messages failed on it (Timeout)",
        "Messages that were put off because of it start when their time comes; that may take some minutes.",
    ]
    with the_store(shop) as store:
        assert (store.pauses(), store.circuits("orders")) == ([], [])
        assert [circuit.source for circuit in store.circuits()] == ["refunds"]


def test_resume_as_json(shop):
    with the_store(shop) as store:
        store.pause(Pause("orders", OPERATOR, "migration", "eva@web-1"))
    document = in_this_process("resume", "orders", *ON, "--json", cwd=shop).json
    (pause,) = document["ended"]
    assert (pause["kind"], pause["by"], pause["reason"]) == ("operator", "eva@web-1", "migration")
    assert (document["source"], document["closed"], document["consumers"]) == ("orders", [], 0)
    assert in_this_process("resume", "orders", *ON, "--json", cwd=shop).json["ended"] == []


def test_where_nothing_is_paused_that_is_said_with_what_is(shop):
    said = "'orders' is not paused, and no outage of it is known. Nothing was changed."
    nothing = in_this_process("resume", "orders", *ON, cwd=shop)
    assert (nothing.code, nothing.text, nothing.err) == (0, f"{said}\n", "")
    with the_store(shop) as store:
        store.pause(Pause("refunds", OPERATOR, "migration", "eva@web-1"))
    assert in_this_process("resume", "orders", *ON, cwd=shop).text == (
        f"{said} Sources that are paused or have an outage: 'refunds'\n"
    )
