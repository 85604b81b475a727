import pytest

from unpoison.brokers import masked


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("amqp://app:secret@h/v", "amqp://app:***@h/v"),
        ("amqp://h/v?management=http://h:15672", "amqp://h/v?management=http://h:15672"),
        ("amqp://app:secret@h/v?management=http://call:hush@h:15672", "amqp://app:***@h/v?management=http://call:***@h:15672"),
        ("amqp://h/v?management=https://call:hu%40sh@h&x=1", "amqp://h/v?management=https://call:***@h&x=1"),
        ("amqp://h/v?management=http%3A%2F%2Fcall%3Ahush%40h", "amqp://h/v?management=http%3A%2F%2Fcall%3A***%40h"),
        ("kafka://app:secret@a:9092,b:9092?group=x", "kafka://app:***@a:9092,b:9092?group=x"),
        ("kafka://a?sasl.username=app&sasl.password=hush&group=x", "kafka://a?sasl.username=app&sasl.password=***&group=x"),
        ("kafka+ssl://a?ssl.key.pem=hush&ssl.key.password=hush", "kafka+ssl://a?ssl.key.pem=***&ssl.key.password=***"),
        ("kafka://a?sasl.oauthbearer.client.secret=hush", "kafka://a?sasl.oauthbearer.client.secret=***"),
    ],
)
def test_no_password_of_a_url_is_shown(url, shown):
    assert masked(url) == shown
