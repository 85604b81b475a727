"""Messages of any origin, sent with the client of SQS."""

import json
import re

from hypothesis import given as for_all
from hypothesis import strategies as some

from tests.contract.sqs_lab import SQSLab
from tests.envelopes.generated import COUNTERS, LETTERS, STEADY, envelopes, junk, numbers, texts
from tests.envelopes.surviving import can_be_looked_at, survives

REFUSED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NAMES = ["unpoison", "theirs", "counters", "trace.id"]
takeable = texts.filter(lambda text: text.strip() and not REFUSED.search(text))
anything = some.one_of(some.none(), some.booleans(), some.integers(-2, 2), texts, some.just([]), some.just({}))
FIELDS = {
    "id": anything,
    "key": anything,
    "headers": some.one_of(anything, some.just({"a": 1}), some.just({"a": "b"})),
    "encoding": some.sampled_from(["base64", "zlib", "empty", "x", 1, None]),
    "stamp": anything,
    "counters": some.one_of(anything, some.sampled_from(COUNTERS)),
    "wait": some.sampled_from([0, -1, 1e308, "x", None]),
    "attributes": some.one_of(anything, some.just({"a": {"b": "c"}}), some.just({"a": 1})),
    "letter": some.one_of(anything, some.sampled_from(LETTERS)),
    "letter_id": anything,
    "state": anything,
}
OURS = some.dictionaries(some.sampled_from(list(FIELDS)), some.none(), max_size=4).flatmap(
    lambda names: some.fixed_dictionaries({name: FIELDS[name] for name in names})
)
VALUES = some.one_of(
    takeable.map(lambda text: {"DataType": "String", "StringValue": text}),
    OURS.map(lambda found: {"DataType": "String", "StringValue": json.dumps(found)}),
    junk.filter(bool).map(lambda data: {"DataType": "Binary", "BinaryValue": data}),
    numbers.filter(lambda text: re.fullmatch(r"-?\d{1,20}", text, re.ASCII)).map(
        lambda text: {"DataType": "Number", "StringValue": text}
    ),
    takeable.map(lambda text: {"DataType": "String.json", "StringValue": text}),
)
BATCHES = envelopes(
    some.tuples(some.sampled_from(NAMES), VALUES), tails=some.sampled_from([b"", b"{}", "ü".encode()]), keys=some.none()
)


def send(lab, batch, name="orders"):
    lab.broker("orders")
    queue = lab.queue(name)
    entries = [
        {"Id": str(number), "MessageBody": each.body(number).decode(), "MessageAttributes": dict(each.fields)}
        for number, each in enumerate(batch)
    ]
    for start in range(0, len(entries), 10):
        answer = queue.client.send_message_batch(QueueUrl=queue.url, Entries=entries[start : start + 10])
        assert not answer.get("Failed")


@STEADY
@for_all(BATCHES)
def test_the_consumer_survives_whatever_is_sent(elasticmq, tmp_path_factory, batch):
    with SQSLab(elasticmq, tmp_path_factory.mktemp("lab")) as lab:
        survives(lab, batch, lambda batch: send(lab, batch))


@STEADY
@for_all(BATCHES)
def test_whatever_lies_in_the_dlq_can_be_looked_at(elasticmq, tmp_path_factory, batch):
    with SQSLab(elasticmq, tmp_path_factory.mktemp("lab")) as lab:
        send(lab, batch, "orders-dlq")
        can_be_looked_at(lab, len(batch))
