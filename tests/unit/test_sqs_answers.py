"""What the quick reader makes of an answer of SQS is what botocore makes of it, or it leaves it to botocore."""

import json

import botocore.session
import pytest
from botocore.parsers import ResponseParserFactory

from unpoison.brokers.sqs import connection

JSON = {"content-type": "application/x-amz-json-1.0", "x-amzn-requestid": "1"}
MESSAGE = {
    "MessageId": "0",
    "ReceiptHandle": "handle",
    "MD5OfBody": "md5",
    "Body": 'a "BinaryValue" in quotes, ü 😀 \t',
    "Attributes": {"ApproximateReceiveCount": "2", "SentTimestamp": "1700000000000"},
    "MessageAttributes": {"unpoison": {"DataType": "String", "StringValue": '{"id":"1"}'}},
}
BINARY = {"DataType": "Binary", "BinaryValue": "AP8="}
READ = {
    "a message": {"Messages": [MESSAGE]},
    "ten": {"Messages": [MESSAGE] * 10},
    "no message": {"Messages": []},
    "nothing": {},
}
LEFT = {
    "bytes": json.dumps({"Messages": [{**MESSAGE, "MessageAttributes": {"raw": BINARY}}]}).encode(),
    "half a character": b'{"Messages":[{"Body":"\\ud800"}]}',
}


@pytest.fixture(scope="module")
def shape():
    return botocore.session.Session().get_service_model("sqs").operation_model("ReceiveMessage").output_shape


def parsed(response, shape):
    told = ResponseParserFactory().create_parser("json").parse(response, shape)
    told.pop("ResponseMetadata")
    return told


def answer(body, headers=JSON, status=200):
    return {"body": body, "headers": headers, "status_code": status}


@pytest.mark.parametrize("said", READ.values(), ids=READ)
def test_it_reads_what_botocore_reads(shape, said):
    body = json.dumps(said).encode()
    response, found = answer(body), {}
    connection.read(response_dict=response, customized_response_dict=found, operation_model=None)
    assert response["body"] == b"{}"
    assert {**parsed(response, shape), **found} == parsed(answer(body), shape) == said


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_is_unusual_is_left_to_botocore(shape, body):
    response, found = answer(body), {}
    connection.read(response_dict=response, customized_response_dict=found)
    assert (response["body"], found) == (body, {})
    assert len(parsed(response, shape)["Messages"]) == 1


@pytest.mark.parametrize("response", [answer(b"<a/>", {"content-type": "text/xml"}), answer(b'{"__type":"no"}', status=400)])
def test_what_is_no_answer_in_json_is_left_to_botocore(response):
    before, found = dict(response), {}
    connection.read(response_dict=response, customized_response_dict=found)
    assert (response, found) == (before, {})
