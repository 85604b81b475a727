import pytest

from unpoison.errors import ConfigError
from unpoison.port.broker_url import Options, parse


def options(query):
    return Options(parse(f"nats://name:password@host:4222?{query}", "nats://host"), ["group", "wait", "copies"], ["token"])


def test_what_is_left_out_has_its_default_and_the_rest_is_passed_on():
    found = options("token=x&wait=2.5")
    assert found.seconds("wait", 30.0, 0.5, 60, "") == 2.5
    assert found.whole("copies", 3, 1, 5, "") == 3
    assert found.text("group", "unpoison", str.isalpha, "") == "unpoison"
    assert found.passed_on == {"token": "x"}
    assert "wait" in found
    assert found.get("copies") is None


def test_an_option_that_does_not_exist_is_refused_with_those_that_do_and_without_the_password():
    with pytest.raises(ConfigError, match=r"'grop', which does not exist. There are: group, wait, copies, token.") as raised:
        options("grop=x")
    assert "password" not in str(raised.value)


@pytest.mark.parametrize("text", ["0.4", "61", "x", "", "nan", "inf", "-1"])
def test_seconds_out_of_their_range_are_refused(text):
    with pytest.raises(ConfigError, match=r"wait in the URL must be seconds from 0.5 to 60, got '.*'. It is how long."):
        options(f"wait={text}").seconds("wait", 30.0, 0.5, 60, "It is how long.")


@pytest.mark.parametrize("text", ["0", "6", "2.0", "²", "x", "", "-1"])
def test_whole_numbers_out_of_their_range_are_refused(text):
    with pytest.raises(ConfigError, match=r"copies in the URL must be a whole number from 1 to 5, got '.*'. A cluster keeps 3."):
        options(f"copies={text}").whole("copies", 1, 1, 5, "A cluster keeps 3.")


def test_a_text_that_does_not_fit_is_refused_with_the_rule():
    with pytest.raises(ConfigError, match=r"group='a b' in the URL must be letters."):
        options("group=a%20b").text("group", "unpoison", str.isalpha, "must be letters.")
