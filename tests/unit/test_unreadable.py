"""Whoever may write to a queue may write headers that look like ours. One nested too deeply for any parser stops nobody."""

import struct

import pytest

from unpoison.brokers.nats import copies as nats_copies
from unpoison.brokers.nats import envelope as nats
from unpoison.brokers.rabbitmq import envelope as rabbitmq
from unpoison.brokers.rabbitmq import letters as rabbitmq_letters
from unpoison.brokers.redis import envelope as redis
from unpoison.brokers.sqs import envelope as sqs
from unpoison.model.message import UNTRIED, as_text
from unpoison.port import serialization

NESTED = b'{"a":' * 5000 + b"1" + b"}" * 5000
LISTS = b"[" * 5000 + b"]" * 5000


@pytest.fixture(params=[NESTED, LISTS, b'{"a":5}', b"5", b"no JSON", b"\xff"])
def text(request):
    return request.param


def in_table(text: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(text)) + text


def test_rabbitmq(text):
    assert rabbitmq._counters({rabbitmq.COUNTERS: in_table(text)}) == UNTRIED
    assert rabbitmq_letters._replays({rabbitmq.COUNTERS: in_table(text)}) == 0


def test_nats(text):
    assert nats.more(text) == nats.More()
    where = nats.Place("orders", "", 1, 1, 1, 0)
    block = nats.block([b"x-unpoison-stamp: orders:1:0", nats.COUNTERS + b": " + text, nats_copies.RECORD + b": " + text])
    assert nats.look(block, where).counters == UNTRIED
    letter = nats_copies.read("orders", where, block, b"body", number=1, state="dead", group="billing").letter
    assert (letter.error_type, letter.body) == ("nats.Unknown", b"body")


def test_kafka(text):
    assert serialization.counters_or_untried(text) == UNTRIED


def test_redis(text):
    assert redis._headers({b"headers": text}) == {"headers": as_text(text)}


def test_sqs(text):
    raw = {"MessageAttributes": {"unpoison": {"StringValue": text.decode("latin-1")}}}
    assert sqs._read(raw) == sqs.Envelope()
