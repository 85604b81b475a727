"""What `unpoison publish` says when a broker stores a part of what it was given."""

import json

import pytest

from tests.contract.cutting_proxy import CuttingProxy
from tests.contract.nats_lab import NATSLab
from tests.e2e.command_line import unpoison

LARGE = json.dumps("x" * 200_000)


@pytest.fixture
def lab(tmp_path, nats):
    with NATSLab(nats, tmp_path) as lab:
        lab.refused_message(lab.broker("orders"))  # from now on what is over 100,000 bytes
        yield lab


def test_it_says_which_lines_are_not_stored_and_why(lab, tmp_path):
    (tmp_path / "orders.jsonl").write_text(f'{{"id": 1}}\n\n{LARGE}\n{{"id": 4}}\n{LARGE}\n')
    ended = unpoison("publish", lab.url, "orders", "--file", "orders.jsonl", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    first, second = ended.err.splitlines()
    assert first == "Error: Messages for 'orders': 2 stored, 2 refused, 0 unknown. Nothing after line 5 was sent."
    assert second.startswith("  Refused, line 3, 5: NATS did not store it: message size exceeds maximum allowed")


def test_json_has_all_three_lists(lab, tmp_path):
    ended = unpoison("publish", lab.url, "orders", "--json", cwd=tmp_path, stdin=f"1\n{LARGE}\n3\n".encode())
    assert ended.code == 1
    assert (len(ended.json["ids"]), ended.json["unknown"], ended.json["created"]) == (2, [], False)
    (refused,) = ended.json["refused"]
    assert (refused["number"], refused["refusal"]) == (2, "too large")
    broker = lab.broker("orders")
    assert [delivery.id for delivery in broker.fetch("orders", 10)] == ended.json["ids"]


def test_one_message_that_the_broker_never_takes_is_one_sentence(lab, tmp_path):
    ended = unpoison("publish", lab.url, "orders", "--raw", "--id", "a", cwd=tmp_path, stdin=LARGE.encode())
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: NATS did not store it: message size exceeds maximum allowed")


def test_what_got_no_answer_is_told_as_unknown_with_its_id(lab, tmp_path):
    with CuttingProxy(lab.url, b"unanswered") as proxy:
        ended = unpoison("publish", proxy.url, "orders", '"unanswered 1"', '"unanswered 2"', "--json", cwd=tmp_path)
    assert ended.code == 1
    assert ended.json["ids"] == ended.json["refused"] == []
    assert [each["number"] for each in ended.json["unknown"]] == [1, 2]
    assert all(each["id"] and each["reason"] for each in ended.json["unknown"])
    assert "0 stored, 0 refused, 2 unknown. Nothing after payload 2 was sent." in ended.err
