"""Dead letters in a store: `collect`, `audit`, and what the dead-letter commands can do there."""

import signal
import sqlite3
import subprocess

import pytest

from tests.e2e.command_line import UNPOISON, dead_letters, environment, in_this_process, unpoison
from tests.e2e.test_cli_dlq import on

PIANOS, DRUM = (b'{"item": "piano", "n": 1}', b'{"item": "piano", "n": 2}'), b'{"item": "drum", "n": 3}'


@pytest.fixture
def url(tmp_path):
    return dead_letters(tmp_path, *PIANOS, DRUM, error=ValueError("no"))


@pytest.fixture
def run(url, tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"

    def run(*arguments, code=0):
        done = in_this_process(*arguments, "--store", store, cwd=tmp_path)
        assert done.code == code, done.err
        return done

    return run


def native_letters(url):
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        return connection.execute("select count(*) from unpoison_dead").fetchone()[0]


def test_collect_moves_every_letter_and_says_how_many(url, run):
    assert run("collect", "--url", url, "--once").text == "orders: 3 dead letters moved into the store.\n"
    assert native_letters(url) == 0
    again = run("collect", "--url", url, "--once", "--json")
    assert again.json == {"orders": {"new": 0, "known": 0, "duplicates": 0, "left": 0}}
    listed = run("dlq", "ls", *on(url), "--json").json
    assert [letter["id"] for letter in listed] == ["orders-1", "orders-2", "orders-3"]


def test_old_letters_expire_while_they_are_collected(url, run):
    expire = ["--expire", "age>=0s drum"]
    assert run("collect", "--url", url, "--once", *expire).text == (
        "orders: 3 dead letters moved into the store.\nDeleted 1 dead letter that matched age>=0s drum.\n"
    )
    assert [letter["id"] for letter in run("dlq", "ls", *on(url), "--json").json] == ["orders-1", "orders-2"]
    assert run("audit", "--url", url, "--json").json[0]["after"] == "expired"
    wrong = run("collect", "--url", url, "--once", "--expire", "drum", code=1).err
    assert "would delete dead letters as soon as they come" in wrong


def completed(line, cwd):
    """What bash offers for the last word of this line."""
    last = len(line.replace("\\ ", "").split(" ")) - 1
    told = {"_UNPOISON_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(last)}
    done = subprocess.run(UNPOISON, cwd=cwd, env=environment(**told), capture_output=True, text=True, check=True)
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each], done.stderr


def test_the_shell_offers_the_groups_of_the_store(url, run, tmp_path):
    run("collect", "--url", url, "--once")
    (group,) = {f"group:{each['group']}" for each in run("dlq", "groups", *on(url), "--json").json}
    store = f"--url {url} --store sqlite:///{tmp_path}/store.db"
    for begun in ("", "gr", "group:", group[:10]):
        assert completed(f"unpoison dlq note {store} {begun}", tmp_path) == ([group], "")
    assert completed(f"unpoison dlq ls {store} --where drum\\ group:", tmp_path)[0] == [f"drum {group}"]
    assert completed(f"unpoison dlq note {store} orders-", tmp_path) == ([], "")
    for away in ("--url sqlite:///none.db", "--app none:app", "--url amqp://127.0.0.1:1", ""):
        assert completed(f"unpoison dlq note {away} group:", tmp_path) == ([], "")


def test_a_look_with_a_store_collects_first_and_without_one_does_not(url, run, tmp_path):
    assert in_this_process("dlq", "count", *on(url), cwd=tmp_path).text == "orders: 3 dead, 0 replayed, 0 discarded\n"
    assert native_letters(url) == 3
    assert [letter["id"] for letter in run("dlq", "ls", *on(url), "--where", "body:piano", "--json").json] == [
        "orders-1",
        "orders-2",
    ]
    assert native_letters(url) == 0
    assert in_this_process("dlq", "count", *on(url), cwd=tmp_path).text == "orders: 0 dead, 0 replayed, 0 discarded\n"


def test_letters_are_replayed_discarded_and_restored_in_the_store_and_the_log_tells_who_did_what(url, run, tmp_path):
    assert run("dlq", "replay", "orders-1", *on(url)).text == "Replayed orders-1.\n"
    assert run("dlq", "discard", "--where", "body.n>=2", "--yes", *on(url)).text == "Discarded 2 dead letters.\n"
    assert run("dlq", "restore", "--where", "drum", *on(url)).text == "Restored 1 dead letter: they wait again.\n"
    assert run("dlq", "count", *on(url)).text == "orders: 1 dead, 1 replayed, 1 discarded\n"
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("select body from unpoison_waiting").fetchall() == [(PIANOS[0],)]
    entries = run("audit", "--url", url, "--json").json
    assert [(entry["what"], entry["after"], entry["letters"], entry["about"]) for entry in entries] == [
        ("state", "dead", 1, "drum"),
        ("state", "discarded", 2, "body.n>=2"),
        ("state", "replayed", 1, "id:orders-1"),
    ]
    assert all("@" in entry["who"] for entry in entries)
    shown = run("audit", "--url", url, "--limit", "2").text
    assert "discarded" in shown
    assert "replayed" not in shown


def test_what_people_say_of_letters_and_groups_is_kept(url, run):
    (group,) = run("dlq", "groups", *on(url), "--json").json
    assert (group["count"], group["state"], group["owner"], group["note"]) == (3, "open", None, None)
    fingerprint = group["group"]
    assert run("dlq", "own", f"group:{fingerprint[:6]}", "ann", *on(url)).text == f"group {fingerprint} is open; owner ann\n"
    assert run("dlq", "note", "orders-2", "ask billing", *on(url)).text == "orders-2: note is now: ask billing\n"
    assert run("dlq", "show", "orders-2", *on(url), "--json").json["note"] == "ask billing"
    assert run("dlq", "note", "orders-2", "--clear", *on(url)).text == "orders-2: note removed\n"
    snoozed = run("dlq", "snooze", f"group:{fingerprint}", "2d", *on(url), "--json").json
    assert (snoozed["state"], snoozed["owner"]) == ("snoozed", "ann")
    resolved = run("dlq", "resolve", f"group:{fingerprint}", "--version", "1.4", *on(url), "--json").json
    assert (resolved["state"], resolved["resolved_in"]) == ("resolved", "1.4")
    assert "is snoozed" in run("dlq", "resolve", f"group:{fingerprint}", "--reopen", *on(url)).text
    assert run("dlq", "snooze", f"group:{fingerprint}", "0s", *on(url)).text == f"group {fingerprint} is open; owner ann\n"


def test_what_was_said_of_a_group_stands_below_the_groups_and_is_said_in_full(url, run):
    assert "open" not in run("dlq", "groups", *on(url)).text
    (group,) = run("dlq", "groups", *on(url), "--json").json
    name = f"group:{group['group']}"
    run("dlq", "own", name, "ann", *on(url))
    assert run("dlq", "groups", *on(url)).text.endswith(f"\n\ngroup {group['group']} is open; owner ann\n")
    run("dlq", "note", name, "the key has expired", *on(url))
    assert "is snoozed until 20" in run("dlq", "snooze", name, "2d", *on(url)).text
    *_, last = run("dlq", "groups", *on(url)).text.splitlines()
    assert last == f"group {group['group']} is snoozed; owner ann; note: the key has expired"


def test_a_group_is_resolved_when_its_letters_have_been_replayed(url, run):
    (group,) = run("dlq", "groups", *on(url), "--json").json
    run("dlq", "replay", "--all", "--yes", *on(url))
    resolved = run("dlq", "resolve", f"group:{group['group'][:6]}", "--version", "1.4.2", *on(url))
    assert resolved.text == f"group {group['group']} is resolved in 1.4.2\n"


def test_one_mistyped_id_restores_nothing(url, run):
    run("dlq", "discard", "orders-1", "orders-2", *on(url))
    assert "orders-99" in run("dlq", "restore", "orders-1", "orders-99", *on(url), code=1).err
    assert run("dlq", "count", *on(url)).text == "orders: 1 dead, 0 replayed, 2 discarded\n"
    assert run("dlq", "restore", "orders-1", "orders-2", *on(url)).text == "Restored 2 dead letters: they wait again.\n"
    assert run("audit", "--url", url, "--limit", "1", "--json").json[0]["about"] == "id:orders-1 or id:orders-2"


def test_letters_that_a_filter_means_are_restored_at_once_and_not_looked_for_one_by_one(url, run, monkeypatch):
    run("dlq", "discard", "--where", "body:piano", "--yes", *on(url))
    monkeypatch.delattr("unpoison.store.letters.sql_letters.SQLLetterStore.find")
    assert run("dlq", "restore", "--where", "body:piano", *on(url)).text == "Restored 2 dead letters: they wait again.\n"


def test_one_that_was_replayed_is_restored_by_its_id_and_not_by_a_filter(url, run):
    run("dlq", "replay", "orders-1", *on(url))
    run("dlq", "discard", "orders-2", *on(url))
    run("dlq", "restore", "--where", "state:replayed or body:drum", *on(url))
    assert run("dlq", "count", *on(url)).text == "orders: 1 dead, 1 replayed, 1 discarded\n"
    run("dlq", "restore", "orders-1", "orders-2", "orders-3", *on(url))
    assert run("dlq", "count", *on(url)).text == "orders: 3 dead, 0 replayed, 0 discarded\n"


def audited(run, url):
    """What the table shows, without when and who."""
    return [" ".join(line.split()[3:]) for line in run("audit", "--url", url).text.splitlines()[1:]]


def test_the_audit_log_says_what_became_of_a_group(url, run):
    (group,) = run("dlq", "groups", *on(url), "--json").json
    name = f"group:{group['group']}"
    for what in (("own", name, "ann"), ("own", name, "--clear"), ("snooze", name, "2d"), ("snooze", name, "0s")):
        run("dlq", *what, *on(url))
    run("dlq", "resolve", name, "--version", "1.4.2", *on(url))
    run("dlq", "resolve", name, "--reopen", *on(url))
    run("dlq", "note", "orders-1", "x", *on(url))
    run("dlq", "note", "orders-1", "--clear", *on(url))
    run("dlq", "purge", "--where", "drum", "--yes", *on(url))
    said = audited(run, url)
    assert said.pop(6).startswith("snoozed until ")
    assert said == [
        "purged 1 drum",
        "note removed 1 id:orders-1",
        "note to x 1 id:orders-1",
        f"reopened {name}",
        f"resolved in 1.4.2 {name}",
        f"no longer snoozed {name}",
        f"owner removed {name}",
        f"owner to ann {name}",
    ]


def test_the_audit_log_shows_a_command_in_one_line_however_many_letters_it_changed(url, run, tmp_path):
    dead_letters(tmp_path, *(b'{"n": 9}' for _ in range(120)), error=ValueError("no"))
    run("dlq", "discard", "--where", "body.n=9", "--yes", *on(url))
    run("dlq", "restore", "--where", "body.n=9", *on(url))
    assert len(run("audit", "--url", url, "--json").json) > 2
    assert audited(run, url) == ["state to dead 120 body.n=9", "state to discarded 120 body.n=9"]
    assert len(run("audit", "--url", url, "--limit", "1").text.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("note", "group:zz", "x"), "No group of letters begins with 'zz'"),
        (("note", "orders-99", "x"), "orders-99"),
        (("note", "orders-1"), "Give the note, or --clear"),
        (("resolve", "group:2"), "--version VERSION"),
        (("restore",), "Give the ids of the letters to restore"),
        (("restore", "orders-99"), "orders-99"),
        (("snooze", "group:2", "soon"), "is not a duration"),
    ],
)
def test_a_mistake_is_explained_and_changes_nothing(url, run, tmp_path, arguments, said):
    done = in_this_process("dlq", *arguments, *on(url), "--store", f"sqlite:///{tmp_path}/store.db", cwd=tmp_path)
    assert done.code in (1, 2)
    assert said in done.err


def test_without_a_store_it_is_said_what_is_missing(url, tmp_path):
    note = in_this_process("dlq", "note", "orders-1", "x", *on(url), cwd=tmp_path)
    assert (note.code, "--store URL" in note.err) == (1, True)
    memory = in_this_process("collect", "--url", "memory://", "--once", cwd=tmp_path)
    assert memory.code == 1
    redis = in_this_process("collect", "--url", "redis://nowhere.invalid", "--once", cwd=tmp_path)
    assert (redis.code, "has none" in redis.err) == (1, True)


def test_collect_goes_on_until_it_is_interrupted(url, tmp_path):
    command = [*UNPOISON, "collect", "--url", url, "--store", f"sqlite:///{tmp_path}/store.db"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "orders: 3 dead letters moved into the store.\n"
            dead_letters(tmp_path, b"{}", error=ValueError("no"))
            assert process.stdout.readline() == "orders: 1 dead letter moved into the store.\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert native_letters(url) == 0


def test_status_counts_the_letters_in_the_dlq_and_in_the_store(url, run, tmp_path):
    run("collect", "--url", url, "--once")
    dead_letters(tmp_path, b"{}", error=ValueError("no"))
    (orders,) = run("status", "--url", url, "--json").json["sources"]
    assert (orders["source"], orders["dead"]) == ("orders", 4)


def test_letters_go_to_a_file_and_into_another_store(url, run, tmp_path):
    run("dlq", "note", "orders-2", "ask billing", *on(url))
    run("dlq", "discard", "orders-3", *on(url))
    exported = run("dlq", "export", *on(url))
    assert exported.err == "3 dead letters written.\n"
    (tmp_path / "letters.jsonl").write_bytes(exported.out)
    other = f"sqlite:///{tmp_path}/other.db"
    for said in ("3 dead letters imported, 0 were there already.\n", "0 dead letters imported, 3 were there already.\n"):
        done = in_this_process("dlq", "import", "letters.jsonl", "--url", url, "--store", other, cwd=tmp_path)
        assert (done.code, done.text) == (0, said), done.err
    again = in_this_process("dlq", "export", *on(url), "--store", other, cwd=tmp_path)
    assert again.out == exported.out
    some = run("dlq", "export", *on(url), "--where", "state:discarded")
    assert some.err == "1 dead letter written.\n"
    (tmp_path / "broken.jsonl").write_bytes(exported.out + b"{}\n")
    broken = in_this_process("dlq", "import", "broken.jsonl", "--url", url, "--store", other, cwd=tmp_path)
    assert (broken.code, "Line 4:" in broken.err) == (1, True)


SHOP = """
from unpoison import App

app = App("sqlite:///shop.db", store="sqlite:///store.db", collect=True)

@app.consumer("orders", isolation="inline")
def handle(order):
    raise ValueError("no")
"""


def test_an_app_that_collects_needs_no_option(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    publish = in_this_process("publish", f"sqlite:///{tmp_path}/shop.db", "orders", "1", cwd=tmp_path)
    assert publish.code == 0
    done = unpoison("run", "shop:app", "--until-empty", "--json", cwd=tmp_path)
    assert done.json["total"]["dead"] == 1, done.err
    assert native_letters(f"sqlite:///{tmp_path}/shop.db") == 0
    assert unpoison("dlq", "count", "--app", "shop:app", cwd=tmp_path).text == "orders: 1 dead, 0 replayed, 0 discarded\n"
