"""Do the servers that speak SQS give each test queues of its own, and keep what they are to keep?"""

import pytest

from tests.contract.sqs_lab import Queue

pytestmark = pytest.mark.servers("elasticmq", "moto")


def test_fresh_places_do_not_see_each_other(elasticmq):
    assert elasticmq.fresh() != elasticmq.fresh()


@pytest.mark.long
def test_one_with_storage_keeps_what_it_confirmed(private_server):
    server = private_server("elasticmq", settings={"storage": "yes"})
    queue = Queue(server.client(), "kept")
    queue.create()
    queue.send("here")
    server.kill_hard()
    server.start()
    assert [message["Body"] for message in queue.received()] == ["here"]


def test_moto_minds_the_twelve_hours(moto):
    queue = Queue(moto.client(), "limits")
    queue.create()
    queue.send("here")
    (message,) = queue.received()
    with pytest.raises(queue.client.exceptions.ClientError, match="43200"):
        queue.client.change_message_visibility(
            QueueUrl=queue.url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=43_201
        )
