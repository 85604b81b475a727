"""Which URLs can be notified, what of them is shown, and how is their list written?"""

import pytest

from unpoison import App
from unpoison.decide.options import settings_from
from unpoison.errors import ConfigError
from unpoison.notifying.targets import Mailbox, Webhook, harmless, shown, targets_of
from unpoison.port.broker_url import masked

SLACK = "https://hooks.slack.com/services/T0AAAA/B0BBBB/XYZSECRET"
MAIL = "smtp://ada:s3cr%40t@mx.example:587/?from=unpoison@shop.example&to=a@shop.example,b@shop.example"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (SLACK, Webhook(SLACK, True, None, "https://hooks.slack.com/***")),
        ("slack+https://chat.example/x", Webhook("https://chat.example/x", True, None, "slack+https://chat.example/***")),
        (
            "https://u:p%2Fw@h.example:8443/in?k=v",
            Webhook("https://h.example:8443/in?k=v", False, ("u", "p/w"), "https://h.example:8443/***"),
        ),
        ("http://h/ä?b=%20ü", Webhook("http://h/%C3%A4?b=%20%C3%BC", False, None, "http://h/***")),
        ("http://[::1]:8080", Webhook("http://[::1]:8080/", False, None, "http://[::1]:8080/***")),
        (
            MAIL,
            Mailbox(
                "mx.example",
                587,
                "starttls",
                ("ada", "s3cr@t"),
                "unpoison@shop.example",
                ("a@shop.example", "b@shop.example"),
                "smtp://mx.example:587/***",
            ),
        ),
        ("smtps://mx/?from=a@b&to=c@d", Mailbox("mx", 465, "tls", None, "a@b", ("c@d",), "smtps://mx/***")),
        (
            "smtp://localhost:25/?from=a@b&to=c@d&tls=off",
            Mailbox("localhost", 25, "off", None, "a@b", ("c@d",), "smtp://localhost:25/***"),
        ),
    ],
)
def test_targets(url, target):
    assert targets_of([url, url]) == [target]


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("ftp://u:hush@h/SECRETPATH", r"entry 1 of notify \(ftp://h/\*\*\*\) is none of the forms.*hooks.slack.com.*smtp://"),
        ("hooks.slack.com/services/SECRETPATH", r"entry 1 of notify \(\*\*\*\) is none of the forms"),
        ("https:///SECRETPATH", "names no host"),
        ("https://h/SECRETPATH#x", "ends a part too early"),
        ("https://h:port/SECRETPATH", "not a URL that can be understood"),
        ("https://h/SECRETPATH\nx", "control character"),
        ("smtp://u:hu@sh/x@h/?from=a@b&to=c@d", "ends a part too early.*%40"),
        ("smtp://h/?from=a@b", "needs from= and to="),
        ("smtp://h/?from=a@b&to=Eve <c@d>", "control character"),
        ("smtp://h/?from=a@b&to=c@d%0d%0aBcc:x@y", "needs from= and to="),
        ("smtp://h/?from=a@b&to=c@d&to=e@f", "each once"),
        ("smtp://h/SECRETPATH?from=a@b&to=c@d", "may have the options"),
        ("smtp://h/?from=a@b&to=c@d&tls=on", "can only be 'off'"),
        ("smtps://h/?from=a@b&to=c@d&tls=off", "can only be 'off'"),
        ("smtp://u:hush@h/?from=a@b&to=c@d&tls=off", "would send its password unencrypted"),
    ],
)
def test_what_cannot_work_is_refused_without_what_is_secret_in_it(url, what):
    with pytest.raises(ConfigError, match=what) as refused:
        targets_of([url])
    assert not {"SECRETPATH", "hush", "hu@sh"} & {word for word in ("SECRETPATH", "hush", "hu@sh") if word in str(refused.value)}


def test_an_app_refuses_what_cannot_work_and_shows_none_of_its_targets():
    with pytest.raises(ConfigError, match="entry 2 of notify"):
        App("memory://", notify=[SLACK, "xmpp://h/"])
    with pytest.raises(ConfigError, match="notify must be a list of URLs"):
        App("memory://", notify=SLACK)
    with pytest.raises(ConfigError, match="notify_link must be the address of a page"):
        App("memory://", notify_link="javascript:alert(1)")
    assert settings_from({"url": "memory://", "notify": ()}, {"UNPOISON_NOTIFY": SLACK}).notify == ()
    app = App("memory://", notify=[SLACK, MAIL])
    assert app.settings.notify == (SLACK, MAIL)
    assert "SECRET" not in repr(app.settings)
    assert "s3cr" not in repr(app.settings)


@pytest.mark.parametrize("between", [",", " ", "\n", " , ", ",\n"])
def test_a_variable_has_several_urls_separated_by_commas_or_spaces(between):
    settings = settings_from({"url": "memory://"}, {"UNPOISON_NOTIFY": f" {SLACK}{between}{MAIL}{between}http://h/a,b:c "})
    assert settings.notify == (SLACK, MAIL, "http://h/a,b:c")


def test_what_a_server_says_is_shown_without_what_is_secret():
    (slack, mail, hook) = targets_of([SLACK, MAIL, "https://u:hush-hush@h/in?key=QUERYSECRET"])
    assert harmless("no such hook /services/T0AAAA/B0BBBB/XYZSECRET", slack) == "no such hook ***"
    assert "XYZSECRET" not in harmless("token XYZSECRET is invalid", slack)
    assert harmless("bad login s3cr@t for ada", mail) == "bad login *** for ada"
    (escaped,) = targets_of(["https://h/SECRET%20PATH"])
    assert harmless("nothing at SECRET PATH", escaped) == "nothing at ***"
    said = harmless("https://h/in?key=QUERYSECRET: QUERYSECRET with hush-hush", hook)
    assert not {"QUERYSECRET", "hush-hush"} & set(said.replace(":", " ").split())


def test_slack_urls_are_masked_in_any_text():
    assert "XYZSECRET" not in masked(SLACK)
    assert masked("https://hooks.slack.com:443/services/SECRET") == "https://hooks.slack.com:443/***"
    assert masked("slack+https://h/SECRET") == "slack+https://h/***"
    assert shown("nonsense") == "***"
