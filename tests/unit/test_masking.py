"""Nothing that is secret in a URL is shown, whatever the scheme and however badly it is written."""

import pytest

from unpoison.brokers import ADAPTERS, broker_for
from unpoison.errors import ConfigError
from unpoison.port.broker_url import masked, masked_text, without_secrets

SCHEMES = sorted(name for name in ADAPTERS if name not in ("sqlite", "memory"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("sqlite:////home/me@work/shop.db", "sqlite:////home/me@work/shop.db"),
        ("amqp://app:secret@h/v", "amqp://app:***@h/v"),
        ("amqp://h/v?management=http://h:15672", "amqp://h/v?management=http://h:15672"),
        ("amqp://app:secret@h/v?management=http://call:hush@h:15672", "amqp://app:***@h/v?management=http://call:***@h:15672"),
        ("amqp://h/v?management=https://call:hu%40sh@h&x=1", "amqp://h/v?management=https://call:***@h&x=1"),
        ("amqp://h/v?management=http%3A%2F%2Fcall%3Ahush%40h", "amqp://h/v?management=http://call:***@h"),
        ("amqp://h/v?management=http://call:hu&sh@h", "amqp://***@h"),
        ("amqp://:secret@h/v", "amqp://:***@h/v"),
        ("kafka://app:secret@a:9092,b:9092?group=x", "kafka://app:***@a:9092,b:9092?group=x"),
        ("kafka://a?sasl.username=app&sasl.password=hush&group=x", "kafka://a?sasl.username=app&sasl.password=***&group=x"),
        ("kafka://a?sasl.username=app@shop.example&group=x", "kafka://a?sasl.username=app@shop.example&group=x"),
        ("kafka+ssl://a?ssl.key.pem=hush&ssl.key.password=hush", "kafka+ssl://a?ssl.key.pem=***&ssl.key.password=***"),
        ("kafka://a?sasl.oauthbearer.client.secret=hush", "kafka://a?sasl.oauthbearer.client.secret=***"),
        ("postgresql://h/db?user=u&password=s3cret", "postgresql://h/db?user=u&password=***"),
        ("postgres://h/db?sslpassword=hush&sslkey=k.pem", "postgres://h/db?sslpassword=***&sslkey=k.pem"),
        ("postgresql://u:pa/ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:pa@ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:pa#ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:pa?ss@h/db?x=1", "postgresql://u:***@h/db?x=1"),
        ("postgresql://u:pa?a=ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:12/34@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:secret", "postgresql://u:***"),
        ("redis://h/0?password=hush&sentinel_password=hush", "redis://h/0?password=***&sentinel_password=***"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://u:hush@[::1/0", "redis://u:***@[::1/0"),
        ("nats://s3cret@h:4222", "nats://***@h:4222"),
        ("nats://s3/cret@h:4222", "nats://***@h:4222"),
        ("tls://h?token=hush&nkeys_seed=SUAB", "tls://h?token=***&nkeys_seed=***"),
        ("sqs://AKIA:abc/def+ghi@?region=eu-west-1", "sqs://AKIA:***@?region=eu-west-1"),
        ("sqs://?endpoint=http://u:hush@h:9324&region=x", "sqs://?endpoint=http://u:***@h:9324&region=x"),
        ("postgresql://shop@db.example.com/shop", "postgresql://shop@db.example.com/shop"),
        ("host=h user=u password=s3cret", "host=h user=u password=***"),
        ("host=h password='s3 cret' user=u", "host=h password=*** user=u"),
        ("u:s3cret@h/db", "u:***@h/db"),
    ],
)
def test_no_password_of_a_url_is_shown(url, shown):
    assert masked(url) == shown


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("password", ["s3/cr3t", "s3#cr3t", "s3@cr3t", "s3?cr3t", "12/cr3t", "s3?a=cr3t", "/s3cr3t", "s3[cr3t#"])
def test_an_unescaped_password_is_never_shown_in_parts(scheme, password):
    url = f"{scheme}://app:{password}@db.example.com/shop?x=1"
    with pytest.raises(ConfigError) as refused:
        broker_for(url)
    for shown in (masked(url), str(refused.value)):
        assert "cr3t" not in shown
        assert "s3" not in shown


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("character", "/#@?")
def test_a_character_that_cuts_a_password_short_is_refused_with_the_way_to_write_it(scheme, character):
    with pytest.raises(ConfigError) as refused:
        broker_for(f"{scheme}://app:s3{character}cr3t@db.example.com")
    assert f"%{ord(character):02X}" in str(refused.value)


def test_what_a_client_says_about_a_url_is_shown_without_its_secrets():
    url = "postgresql://app:s3%2Fcr%33t@h/db?sslpassword=hu%20sh"
    said = f'cannot use "{url}", password "s3/cr3t", host "cr3t", key "hu sh"'
    assert without_secrets(said, url) == f'cannot use "{masked(url)}", password "***", host "***", key "***"'


def test_secrets_are_taken_out_of_any_text():
    text = "cannot reach 'amqp://app:hush@h/v' or redis://u:hush@h, {'password': 'hush', 'sasl.password': \"hush\"} password=hush"
    assert "hush" not in masked_text(text)
    assert masked_text("nothing secret: see https://example.com/a?b=1") == "nothing secret: see https://example.com/a?b=1"
