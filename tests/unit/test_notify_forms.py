"""How do notices look, and is what others have written in them harmless?"""

import json
import unicodedata

import pytest

from tests.notified import PLACE, notice
from unpoison.control.changes import OperatorPause
from unpoison.model.failure import Failure
from unpoison.model.verdict import ErrorClassification
from unpoison.notifying import news
from unpoison.notifying.commands import Commands
from unpoison.notifying.forms import as_json, as_slack, as_text, written
from unpoison.notifying.notice import Kind, Step
from unpoison.notifying.sending import message_of
from unpoison.notifying.targets import targets_of
from unpoison.notifying.watching import Watch

WALL = 1_700_000_000.0
HOSTILE = [
    "<!channel> <@U123> <https://evil.example|click> & @here *bold* _it_ ~no~ `code` ```x```",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a\r\nBcc: eve@evil.example\r\n\r\n<b>body</b>",
    "line\nline\u2028line\u0085line",
    "\x1b[31mred\x1b]0;title\x07\x00\x7f",
    "\u202egnp.exe\u200b\ufeff\ud800",
    "x" * 100_000,
    "$(rm -rf /) ; `reboot` 'quoted' \"twice\"",
]


def said(**facts):
    return written(notice(**facts), PLACE, 110.0, WALL)


def hostile(text):
    return said(
        title=f"New poison in {text!r}: {text}",
        source=text,
        error=text,
        fingerprint=text,
        letter_id=text,
        bad=text,
        doing=text,
        todo=Commands("shop:app").of_group(text, text, text),
        groups={text: 3},
        parts=[notice(title=text, error=text)],
    )


def test_an_e_mail_says_what_since_when_how_bad_what_is_done_and_what_to_do():
    assert as_text(said()) == (
        "what:     New poison in 'orders': KeyError\n"
        "error:    KeyError: piano\n"
        "since:    2023-11-14 22:13:10 UTC (10 s ago)\n"
        "how bad:  3 dead letters so far\n"
        "unpoison: They are kept as dead letters and not tried again (bug). All other messages go on.\n"
        "\n"
        "Look at one:\n"
        "  unpoison dlq show orders-1 --app shop:app\n"
        "\n"
        "worker-7 · process 4711 · app shop:app · source orders · group 2-abc\n"
    )


def test_the_json_form_has_these_fields():
    found = as_json(said())
    text, identity = found.pop("text"), found.pop("id")
    assert text == as_text(said())
    assert len(identity) == 32
    assert found == {
        "version": 1,
        "kind": "new-group",
        "at": "2023-11-14T22:13:20.000+00:00",
        "host": "worker-7",
        "process": 4711,
        "app": "shop:app",
        "source": "orders",
        "title": "New poison in 'orders': KeyError",
        "since": "2023-11-14T22:13:10.000+00:00",
        "bad": "3 dead letters so far",
        "counts": {"dead": 3},
        "groups": {},
        "doing": "They are kept as dead letters and not tried again (bug). All other messages go on.",
        "todo": [{"text": "Look at one", "command": "unpoison dlq show orders-1 --app shop:app"}],
        "fingerprint": "2-abc",
        "classification": "bug",
        "error": "KeyError: piano",
        "letter_id": "orders-1",
        "again": False,
        "link": None,
        "parts": [],
    }


def test_slack_gets_text_and_blocks():
    found = as_slack(said())
    assert found["text"] == "New poison in 'orders': KeyError"
    assert [block["type"] for block in found["blocks"]] == ["header", "section", "section", "context"]
    assert found["blocks"][2]["text"]["text"] == "Look at one:\n```unpoison dlq show orders-1 --app shop:app```"
    assert (found["parse"], found["link_names"]) == ("none", False)


def test_a_link_is_given_with_source_and_group_in_it():
    place = PLACE.__class__("h", 1, "shop:app", "https://d.example/?s={source}&g={group}")
    found = written(notice(source="a b&c"), place, 110.0, WALL)
    assert as_json(found)["link"] == "https://d.example/?s=a%20b%26c&g=2-abc"
    assert "https://d.example/?s=a%20b%26c" in as_text(found)
    assert "https://d.example/?s=a%20b%26c" in json.dumps(as_slack(found))


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_one_harmless_line_in_an_e_mail(text):
    body = as_text(hostile(text))
    assert not [each for each in body if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp", "Cs")]
    assert len(body) < 20_000
    (target,) = targets_of(["smtp://h/?from=a@b&to=c@d"])
    mail = message_of(target, hostile(text))
    head, _, sent = mail.as_bytes().partition(b"\r\n\r\n")
    assert mail.keys() == [
        "Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted", "X-Unpoison-Kind", "Content-Type",
        "Content-Transfer-Encoding", "MIME-Version",
    ]  # fmt: skip
    assert b"\nbcc:" not in head.lower()
    assert mail.get_content_type() == "text/plain"
    assert sent


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_neither_markup_nor_mention_in_slack_and_fits(text):
    found = as_slack(hostile(text))
    assert "<" not in found["text"]
    for block in found["blocks"]:
        for part in block.get("elements", [block.get("text")]):
            assert 0 < len(part["text"]) <= (150 if block["type"] == "header" else 3_000)
            if part["type"] == "mrkdwn":
                assert "<" not in part["text"]
                assert part["text"].count("`") == 6, "nothing ends the code early"
    json.dumps(found).encode()


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_data_in_json(text):
    found = json.loads(json.dumps(as_json(hostile(text))).encode())
    assert "\n" not in found["title"]
    assert "\n" not in found["error"]
    assert len(json.dumps(found)) < 40_000


def test_a_command_can_be_copied_whatever_a_source_is_called():
    (_, replay) = Commands("shop:app").of_group("a'; rm -rf /", "2-abc", "")
    assert replay.command.endswith("""--source 'a'"'"'; rm -rf /' --app shop:app""")
    assert Commands("", "amqp://u:***@mq/shop").of_status()[0].command == "unpoison status --url 'amqp://u:***@mq/shop'"
    assert Commands("shop:app").of_pause("orders", OperatorPause("a", "", 0.0))[0].command.startswith("unpoison resume orders")


def test_of_an_error_neither_secrets_nor_values_of_the_message_are_told():
    failure = Failure(
        classification=ErrorClassification.BUG,
        rule="bug",
        type_name="shop.Refused",
        text="no stock for bob@example.com, card 4111111111111111, body {'sku': 'A-1'} at postgresql://u:hush@db/x\nsecond line",
        traceback="frame with secrets",
    )
    kept = news.failed("orders", failure, "orders-1", None, is_dead=True)
    watch = Watch(Commands("shop:app"))
    for each in news.of_failure(kept, 100.0, WALL):
        watch.hear(each, 100.0)
    (told,) = watch.due(100.0, is_last=True)
    text = json.dumps(as_json(written(told, PLACE, 100.0, WALL)))
    for secret in ("bob@", "4111", "A-1", "hush", "second line", "frame with"):
        assert secret not in text
    assert told.error.startswith("shop.Refused: no stock for *, card *")


def test_a_summary_names_what_it_sums_up():
    parts = [notice(title="one"), notice(title="two", kind=Kind.PAUSED)]
    text = as_text(said(kind=Kind.SUMMARY, parts=parts, todo=[Step("See", "unpoison status")]))
    assert "one: 3 dead letters so far (2-abc)" in text
    assert [part["title"] for part in as_json(said(parts=parts))["parts"]] == ["one", "two"]
