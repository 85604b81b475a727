"""Thousands of dead letters: each command is complete, and what it costs does not grow with the DLQ more than it must.

Another broker is one line in BROKERS; what its requests are stands in bulk_costs.py.
"""

import json
from contextlib import contextmanager

import click.testing
import pytest

from tests.contract.bulk_costs import costs
from tests.contract.matrix import ROW
from unpoison.cli.main import cli
from unpoison.store.letters import choice as letters_choice
from unpoison.testing import given
from unpoison.testing.running import drained

LETTERS = 3_000
FEW = 60
"""Requests that a command may take however many letters there are; 3,000 letters read one by one, or in pages of 40, are more."""
BULK = LETTERS // 10

BROKERS = ("sqlite", "postgresql", "redis", "nats", "kafka")
"""Rows of the matrix whose DLQ need not be read as a whole. (The others: test_whole_dlq.py.)"""


@pytest.fixture(params=BROKERS)
def lab(request, folder):
    with ROW[request.param].lab(request, folder) as lab:
        given.dead_letters(lab, "orders", [f"{n:05}".encode() + b"x" * 2_000 for n in range(LETTERS)])
        yield lab


@contextmanager
def closed_afterwards(monkeypatch):
    """A command ends with its process and leaves its connection open; here it is closed."""
    opened = []
    with monkeypatch.context() as patches:
        open_one = vars(letters_choice)["dead_letters_for"]
        patches.setattr(
            letters_choice, "dead_letters_for", lambda *a, **options: opened.append(open_one(*a, **options)) or opened[-1]
        )
        yield
    for letters in opened:
        letters.broker.close()


def dlq(lab, monkeypatch, *arguments):
    """Run `unpoison dlq …`; returns what it printed as JSON, and its costs."""
    with closed_afterwards(monkeypatch), costs(lab.url, monkeypatch) as found:
        ended = click.testing.CliRunner().invoke(
            cli, ["dlq", *arguments, "--url", lab.url, "--source", "orders", "--json"], catch_exceptions=False
        )
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout), found


def test_every_command_is_complete_and_none_asks_once_for_each_letter(lab, monkeypatch):
    (count, cost) = dlq(lab, monkeypatch, "count")
    assert count == {"orders": {"dead": LETTERS, "replayed": 0, "discarded": 0}}
    assert cost["requests"] < FEW
    assert cost["letters"] == 0

    oldest, cost = dlq(lab, monkeypatch, "ls", "--limit", "5")
    assert [letter["body"][:5] for letter in oldest] == [f"{n:05}" for n in range(5)]
    assert cost["requests"] < FEW
    assert cost["letters"] == 5

    everything, cost = dlq(lab, monkeypatch, "ls")
    assert [letter["body"][:5] for letter in everything] == [f"{n:05}" for n in range(LETTERS)]
    assert cost["requests"] < BULK
    assert cost["letters"] == LETTERS

    ids = [letter["id"] for letter in everything]
    shown, cost = dlq(lab, monkeypatch, "show", ids[2_000])
    assert shown == everything[2_000]
    assert cost["requests"] < FEW
    assert cost["letters"] == 1
    by_message, cost = dlq(lab, monkeypatch, "show", everything[2_001]["message_id"])
    assert by_message == everything[2_001]
    assert cost["requests"] < FEW
    assert cost["letters"] == 1

    replayed, cost = dlq(lab, monkeypatch, "replay", ids[7], ids[2_500])
    assert replayed == {"replayed": [ids[7], ids[2_500]], "gone": []}
    assert cost["requests"] < FEW
    assert cost["letters"] <= 6
    discarded, cost = dlq(lab, monkeypatch, "discard", ids[8])
    assert discarded == {"discarded": [ids[8]], "gone": []}
    assert cost["requests"] < FEW
    assert cost["letters"] <= 3

    rest = [id_ for id_ in ids if id_ not in (ids[7], ids[2_500], ids[8])]
    replayed, cost = dlq(lab, monkeypatch, "replay", "--all", "--yes")
    assert replayed == {"replayed": rest, "gone": []}
    assert cost["requests"] < BULK
    assert cost["letters"] <= LETTERS
    assert len(received_again(lab)) == LETTERS - 1

    count, cost = dlq(lab, monkeypatch, "count")
    assert count["orders"] == {"dead": LETTERS - 1, "replayed": LETTERS - 1, "discarded": 1}
    assert cost["requests"] < FEW
    purged, cost = dlq(lab, monkeypatch, "purge", "--yes")
    assert purged == {"purged": LETTERS - 1, "history": LETTERS}
    assert cost["requests"] < BULK
    assert cost["letters"] == 0
    assert dlq(lab, monkeypatch, "count")[0]["orders"] == {"dead": 0, "replayed": 0, "discarded": 0}


def received_again(lab):
    """Everything that was sent again, once handled; all of it fails once more."""
    received = []

    def fail(body: bytes) -> None:
        received.append(body)
        raise ValueError("no")

    app = given.consumer(lab.app(), "orders", fail)
    drained(app)
    assert len(received) == len(set(received))
    return received
