"""Entries of any origin, added with Redis' own client."""

from hypothesis import given as for_all
from hypothesis import strategies as some

from tests.contract.redis_lab import RedisLab
from tests.envelopes.generated import SIMPLE, STEADY, each_alone, envelopes, junk
from tests.envelopes.surviving import can_be_looked_at, survives
from tests.fault.redis.redis_parts import raw

OURS = [b"id", b"key", b"headers", b"record", b"fields", b"group", b"replays", b"fingerprint", b"error", b"theirs", b"", b"\xff"]
BATCHES = envelopes(some.tuples(some.sampled_from(OURS), junk))


def has_body(number):
    """Whether a message has the field `body`; of one without it the body is all fields as JSON."""
    return number % 5 > 0


def send(lab, batch, stream="orders"):
    lab.broker("orders")
    with raw(lab.url) as client:
        for number, each in enumerate(batch):
            pairs = [*each.fields, (b"body" if has_body(number) else b"text", each.body(number))]
            client.execute_command("XADD", stream, "*", *(part for pair in pairs for part in pair))


@STEADY
@for_all(BATCHES)
def test_the_consumer_survives_whatever_is_sent(redis, tmp_path_factory, batch):
    with RedisLab(redis, tmp_path_factory.mktemp("lab")) as lab:
        survives(lab, [*batch, *each_alone(OURS, SIMPLE)], lambda batch: send(lab, batch), is_whole=has_body)


@STEADY
@for_all(BATCHES)
def test_whatever_lies_in_the_dlq_can_be_looked_at(redis, tmp_path_factory, batch):
    with RedisLab(redis, tmp_path_factory.mktemp("lab")) as lab:
        send(lab, batch, "dlq:orders")
        can_be_looked_at(lab, len(batch))
