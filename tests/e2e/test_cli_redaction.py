"""Redaction on the command line: what is shown, what is refused, and who has seen an original."""

import base64
import json

import pytest

from tests.contract.labs import SQLiteLab
from tests.e2e.command_line import in_this_process
from unpoison import App, ConfigError, Permanent
from unpoison.testing import given
from unpoison.testing.running import drained

KEY = base64.b64encode(bytes(range(32))).decode()
CANARY = "canary-7f3e91@example.org"
BODY = json.dumps({"customer": {"email": CANARY}, "cvv": "99173"}).encode()


@pytest.fixture
def lab(tmp_path):
    with SQLiteLab(tmp_path) as lab:
        given.dead_letters(lab, "orders", [BODY])
        yield lab


@pytest.fixture
def where(lab, tmp_path):
    return ("--url", lab.url, "--store", f"sqlite:///{tmp_path}/letters.db")


@pytest.fixture
def run(where, tmp_path):
    def run(*arguments, code=0, at=where):
        done = in_this_process(*arguments, *at, cwd=tmp_path)
        assert done.code == code, done.err
        assert "Traceback" not in done.err
        return done

    return run


def test_a_letter_is_collected_redacted_shown_so_and_revealed_with_a_reason(run, tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", KEY)
    run("collect", "--once", "--redact", "searchable body.customer.email")
    (letter,) = run("dlq", "ls", "--json").json
    assert CANARY not in json.dumps(letter)
    assert letter["redaction"]["original"] == "encrypted"
    id_ = letter["id"]
    shown = " ".join(run("dlq", "show", id_).text.split())
    assert f"unpoison dlq reveal {id_} --reason TEXT" in shown
    assert "To see it as it was" in run("dlq", "show", id_, "--body").err
    assert "--reason" in run("dlq", "reveal", id_, code=2).err
    assert run("dlq", "reveal", id_, "--reason", "ticket 4711", "--body").out == BODY
    assert CANARY in run("dlq", "reveal", id_, "--reason", "ticket 4712", "--json").text
    log = " ".join(run("audit").text.split())
    assert "revealed: ticket 4711" in log
    assert "revealed: ticket 4712" in log
    assert "redaction rules: searchable body.customer.email" in log
    assert run("dlq", "count", "--where", f"body.customer.email:{CANARY}", "--json").json["orders"]["dead"] == 1
    for file in tmp_path.glob("letters.db*"):
        assert CANARY.encode() not in file.read_bytes()


def test_without_the_key_letters_are_seen_and_neither_revealed_nor_replayed(run, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", KEY)
    run("collect", "--once", "--redact", "body.customer.email")
    monkeypatch.delenv("UNPOISON_KEY")
    (letter,) = run("dlq", "ls", "--json").json
    for command in (("reveal", letter["id"], "--reason", "x"), ("replay", letter["id"])):
        assert "UNPOISON_KEY is not set" in run("dlq", *command, code=1).err


def test_a_collector_without_the_key_says_so_and_takes_nothing(run, where, monkeypatch):
    monkeypatch.delenv("UNPOISON_KEY", raising=False)
    failed = run("collect", "--once", "--redact", "body.customer.email", code=1)
    assert "UNPOISON_KEY is not set, so no letter is stored" in " ".join(failed.err.split())
    assert run("dlq", "count", "--json", at=where[:2]).json["orders"]["dead"] == 1
    assert "^^^" in run("collect", "--once", "--redact", "bdy.customer", code=1).err


def test_a_letter_of_which_nothing_is_kept_says_so_and_is_not_replayed(run, monkeypatch):
    monkeypatch.delenv("UNPOISON_KEY", raising=False)
    run("collect", "--once", "--redact", "drop body.cvv")
    (letter,) = run("dlq", "ls", "--json").json
    assert "the original is not kept" in " ".join(run("dlq", "show", letter["id"]).text.split())
    failed = " ".join(run("dlq", "replay", letter["id"], code=1).err.split())
    assert "Its original is not kept: a rule of which nothing is kept has found something in it (body.cvv)" in failed


def test_an_export_is_redacted_unless_it_is_asked_for_with_a_reason(run, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", KEY)
    run("collect", "--once", "--redact", "body.customer.email")
    assert CANARY not in run("dlq", "export").text
    assert "--reason" in run("dlq", "export", "--originals", code=2).err
    assert run("dlq", "export", "--originals", "--reason", "move").json["body"].encode() == BODY
    assert "revealed: move" in run("audit").text


def test_the_rules_of_a_store_are_shown_and_taken_away_by_a_person(run, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", KEY)
    run("collect", "--once", "--redact", "body.customer.email", "--redact", "key")
    found = run("redaction", "--json").json
    assert found["rules"] == ["body.customer.email", "key"]
    assert list(found["keys"].values()) == [1]
    assert "no rule 'body.x'" in run("redaction", "--remove", "body.x", code=1).err
    assert run("redaction", "--remove", "key").text.splitlines()[0] == "body.customer.email"


def test_an_app_and_the_environment_have_rules(tmp_path, monkeypatch):
    monkeypatch.setenv("UNPOISON_KEY", KEY)
    monkeypatch.setenv("UNPOISON_REDACT", r"body.customer.email, pattern:\d{4,6}")
    app = App(f"sqlite:///{tmp_path}/shop.db", collect=True)
    assert app.settings.redact == ("body.customer.email", r"pattern:\d{4,6}")

    @app.consumer("orders", isolation="inline")
    def handle(order: dict) -> None:
        raise Permanent(f"no {order['customer']['email']}")

    app.publish("orders", json.loads(BODY))
    monkeypatch.delenv("UNPOISON_KEY")
    with pytest.raises(ConfigError, match="UNPOISON_KEY is not set, so no letter is stored"):
        drained(app)
    monkeypatch.setenv("UNPOISON_KEY", KEY)
    drained(app)
    with app.dlq("orders") as dlq:
        (letter,) = dlq.peek()
        assert CANARY not in letter.error
        assert dlq.reveal(letter.id, reason="test").body == json.dumps(json.loads(BODY), separators=(",", ":")).encode()
    app.close()
