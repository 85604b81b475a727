"""What a URL asks for is what the client is told: TLS or a login is never left out without a word."""

import pytest

from unpoison.brokers.kafka.url import address
from unpoison.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("kafka://a", None),
        ("kafka+ssl://a", "ssl"),
        ("kafka://a?ssl.ca.location=ca.pem", "ssl"),
        ("kafka://a?security.protocol=SSL", "ssl"),
        ("kafka://app:secret@a", "sasl_plaintext"),
        ("kafka://a?sasl.mechanism=PLAIN&sasl.username=app&sasl.password=secret", "sasl_plaintext"),
        ("kafka+ssl://app:secret@a", "sasl_ssl"),
        ("kafka://app:secret@a?ssl.ca.location=ca.pem", "sasl_ssl"),
        ("kafka://app:secret@a?security.protocol=SASL_SSL", "sasl_ssl"),
    ],
)
def test_tls_and_a_login_follow_from_what_is_asked_for(url, protocol):
    assert address(url).options.get("security.protocol") == protocol


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("kafka+ssl://a?security.protocol=PLAINTEXT", "asks for TLS.*'ssl'"),
        ("kafka+ssl://app:secret@a?security.protocol=SASL_PLAINTEXT", "asks for TLS.*'sasl_ssl'"),
        ("kafka://app:secret@a?security.protocol=SSL", "asks for a login.*'sasl_plaintext'"),
    ],
)
def test_a_protocol_without_what_the_rest_asks_for_is_refused(url, told):
    with pytest.raises(ConfigError, match=told) as raised:
        address(url)
    assert "secret" not in str(raised.value)


def test_a_user_and_a_password_are_given_as_they_were_meant():
    options = address("kafka://shop%40eu:se%2Fcret@a?sasl.mechanism=SCRAM-SHA-512").options
    assert (options["sasl.username"], options["sasl.password"]) == ("shop@eu", "se/cret")
    assert options["sasl.mechanism"] == "SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (
            "sasl_mechanism=PLAIN",
            r"'sasl_mechanism', which does not exist.*instance, every option of librdkafka.*\(sasl\.mechanism\)",
        ),
        ("group=", "group='' in the URL cannot be part of a topic's name"),
        ("partitions=0", "a whole number from 1 to 10,000, got '0'. Left out, the server decides."),
        ("session_timeout=soon", "seconds from 0.5 to 3,600, got 'soon'. Left out it is 6."),
        ("enable.auto.commit=true", "which unpoison decides itself: messages that were not handled would count as done"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_what_there_is(option, told):
    with pytest.raises(ConfigError, match=told):
        address(f"kafka://a?{option}")


def test_options_that_are_left_out_or_empty_have_their_defaults():
    found = address("kafka://a?prefix=&instance=")
    assert (found.group, found.prefix, found.instance, found.partitions, found.session_timeout) == ("", "", None, -1, 6.0)
