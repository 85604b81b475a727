import pytest

from bezoar.brokers import masked


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("amqp://app:secret@h/v", "amqp://app:***@h/v"),
        ("amqp://h/v?management=http://h:15672", "amqp://h/v?management=http://h:15672"),
        ("amqp://app:secret@h/v?management=http://call:hush@h:15672", "amqp://app:***@h/v?management=http://call:***@h:15672"),
        ("amqp://h/v?management=https://call:hu%40sh@h&x=1", "amqp://h/v?management=https://call:***@h&x=1"),
        ("amqp://h/v?management=http%3A%2F%2Fcall%3Ahush%40h", "amqp://h/v?management=http%3A%2F%2Fcall%3A***%40h"),
    ],
)
def test_no_password_of_a_url_is_shown(url, shown):
    assert masked(url) == shown
