"""What the command line makes of text: that of others, durations, lines of input, bodies."""

import io
import json
import logging
import sys

import click
import pytest

from unpoison.cli.chosen_letters import said_gone
from unpoison.cli.input_output import DURATION
from unpoison.cli.publish import batches, json_lines, raw_lines
from unpoison.cli.screen import DUMP_LIMIT, TEXT_LIMIT, ago, body_shown
from unpoison.model.wording import acts_on_terminals, first_line, json_text, one_line, visible
from unpoison.reporting.log_lines import JSONLines, PlainLines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, größe, 価格, 🎹\n\tnext", "plain text, größe, 価格, 🎹\n\tnext"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\rb\x00c\x7f", r"a\rb\x00c\x7f"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("tag\U000e0041", r"tag\U000e0041"),
        ("half \ud83d", r"half \ud83d"),
        ("[bold]:smile:[/]", "[bold]:smile:[/]"),
    ],
)
def test_what_a_terminal_would_act_on_is_written_out(text, shown):
    assert visible(text) == shown


def test_of_a_long_error_both_ends_are_kept_since_clients_put_the_reason_last():
    refused = (
        "HTTPConnectionPool(host='billing.example.com', port=443): Max retries exceeded with url: /charges (Caused by "
        "NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f2f5c0d1e50>: Failed to establish a new connection: "
        "[Errno 111] Connection refused'))\nand more"
    )
    line = first_line(refused)
    assert line.startswith("HTTPConnectionPool(host='billing.example.com', port=443): Max")
    assert line.endswith("[Errno 111] Connection refused'))")
    assert 190 <= len(line) <= 200
    assert first_line("  short\nsecond line") == "short"
    assert first_line("x" * 200) == "x" * 200
    assert len(first_line("x" * 201)) == 200


def test_one_line_is_one_line_and_no_longer_than_asked():
    assert one_line("a\nb\tc\u2028d") == r"a\nb\tc\u2028d"
    assert one_line("x" * 20, 10) == "x" * 9 + "…"
    assert one_line("x" * 10, 10) == "x" * 10


def test_json_on_a_terminal_is_harmless_and_means_the_same():
    value = {"key \x1b": ["\x9b\u202e\U000e0041\x00 größe", "\ud83d"]}
    assert json.loads(json_text(value)) == value
    assert visible(json_text(value)) == json_text(value)
    assert "größe" in json_text(value)


@pytest.mark.parametrize(
    ("body", "acts"), [(b"harmless\n\ttext", False), (b"\x1b[2J", True), (b"\xff", True), (b"\xc2\x9b", True)]
)
def test_bytes_that_a_terminal_would_act_on_are_noticed(body, acts):
    assert acts_on_terminals(body) is acts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("10", 10), ("1.5", 1.5), ("500ms", 0.5), ("10s", 10), ("5m", 300), ("5 min", 300), ("2H", 7200), ("1d", 86400)],
)
def test_durations(text, seconds):
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1e3", "1w", "10s5m", "ten", "nan", "inf", "١0s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(click.BadParameter, match="is not a duration"):
        DURATION.convert(text, None, None)


class Chunks(io.RawIOBase):
    """Input that comes in these pieces."""

    def __init__(self, *chunks):
        self.chunks = list(chunks)

    def read1(self, _):
        return self.chunks.pop(0) if self.chunks else b""


def test_each_piece_of_input_is_a_batch_of_the_lines_that_it_completes():
    read = batches(Chunks(b"1\n2\n", b"[3,", b"4]\n5", b"\n", b"6"), json_lines)
    assert list(read) == [(4, [(1, b"1"), (2, b"2")]), (11, [(3, b"[3,4]")]), (12, [(4, b"5")]), (13, [(5, b"6")])]


def test_a_bad_line_is_counted_over_all_pieces_and_spoils_its_batch_only():
    read = batches(Chunks(b"1\n2\n", b"\n4\noops\n"), json_lines)
    assert next(read) == (4, [(1, b"1"), (2, b"2")])
    with pytest.raises(click.ClickException, match=r"^Line 5 is not JSON: "):
        next(read)


def test_raw_lines_lose_nothing_but_their_ends():
    assert list(batches(Chunks(b" a \r\n\n", b"\xff"), raw_lines)) == [(6, [(1, b" a \r"), (2, b"")]), (7, [(3, b"\xff")])]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"1" * 10_000, "Line 7 cannot be sent: integer 111"),
        (b"18446744073709551616", "does not fit into 64 bits"),
        (b"-9223372036854775809", "does not fit into 64 bits"),
        (b"1e999", "beyond the range of a float"),
        (rb'"\ud800"', "a lone surrogate"),
        (rb'{"a": "\udfff x"}', "a lone surrogate"),
        (b"NaN", "Line 7 is not JSON"),
    ],
)
def test_a_line_that_the_api_would_refuse_is_refused(line, why):
    with pytest.raises(click.ClickException, match=why):
        json_lines([b"18446744073709551615", rb'"\ud83d\ude00"', line], 5)


def test_a_json_body_is_laid_out_and_nothing_in_it_changes():
    kind, shown = body_shown(b'{"total":1.10,"total":1e2,"n":12345678901234567890123,"t":"\xc2\x9b"}')
    assert kind == "JSON"
    assert shown == '{\n  "total": 1.10,\n  "total": 1e2,\n  "n": 12345678901234567890123,\n  "t": "\\x9b"\n}'


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b"{oops", "text", "{oops"),
        (b"", "text", ""),
        (b"\x1b[2J", "text", r"\x1b[2J"),
        (b"[" * 100_000, "text", "[" * TEXT_LIMIT + f"\n… {100_000 - TEXT_LIMIT:,} more characters; to see all of it add --body"),
        (b"ab\xff\x00", "not text (invalid UTF-8 at byte 2)", "00000000  61 62 ff 00" + " " * 38 + "ab.."),
        (b"a\x00", "not text (it contains zero bytes)", "00000000  61 00" + " " * 44 + "a."),
    ],
    ids=["broken", "empty", "escape", "deep", "binary", "zero"],
)
def test_other_bodies_are_shown_as_text_or_as_bytes(body, kind, shown):
    assert body_shown(body) == (kind, shown)


def test_a_long_binary_body_is_shown_in_part():
    lines = body_shown(b"\xff" * 10_000)[1].splitlines()
    assert len(lines) == DUMP_LIMIT // 16 + 1
    assert lines[-1] == f"… {10_000 - DUMP_LIMIT:,} more bytes; to see all of it add --body"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7200, "2 h ago"), (1e6, "12 d ago")]
)
def test_how_long_ago(seconds, text):
    assert ago(seconds) == text


def record(name="unpoison", text="Message %r", *values, exc_info=None, **extra):
    made = logging.LogRecord(name, logging.WARNING, "file.py", 1, text, values, exc_info)
    vars(made).update(extra)
    return made


def test_a_line_of_ours_is_one_line_and_a_users_may_be_several():
    assert PlainLines().format(record("unpoison", "a\nb\x1b")).endswith(r" warning unpoison: a\nb\x1b")
    assert PlainLines().format(record("shop", "a\nb\x1b")).endswith(" warning shop: a\nb\\x1b")


def test_a_json_line_has_every_extra_field_and_the_traceback():
    try:
        raise KeyError("piano")
    except KeyError:
        line = JSONLines().format(record("shop", "%s sold", "book", exc_info=sys.exc_info(), event="sale", kind=set))
    told = json.loads(line)
    assert "\n" not in line
    assert (told["level"], told["logger"], told["message"], told["event"]) == ("warning", "shop", "book sold", "sale")
    assert told["traceback"].endswith("KeyError: 'piano'")
    assert told["kind"] == "<class 'set'>"


def test_letters_that_someone_else_dealt_with_first_are_counted():
    assert said_gone([]) == []
    assert said_gone(["orders-1"]) == ["1 was replayed, discarded or purged by someone else in the meantime."]
    assert said_gone(["orders-1"] * 1200) == ["1,200 were replayed, discarded or purged by someone else in the meantime."]
