import os
import re
import signal
import subprocess

import pytest

from tests.e2e.command_line import UNPOISON, environment, ready, terminal, unpoison
from unpoison.brokers import broker_for

URL = "sqlite:///shop.db"


def bodies(folder):
    return [delivery.body for delivery in ready(folder)]


def test_arguments_are_sent_as_they_are(tmp_path):
    payloads = ['{"id": 1,  "total": 9.990}', "3", '"größe"', '{"a":1,"a":2}']
    ended = unpoison("publish", URL, "orders", *payloads, cwd=tmp_path)
    assert (ended.code, ended.text) == (0, "Sent 4 messages to 'orders', which did not exist before.\n")
    assert bodies(tmp_path) == [payload.encode() for payload in payloads]
    assert unpoison("publish", URL, "orders", "5", "6", cwd=tmp_path).text == "Sent 2 messages to 'orders'.\n"


def test_json_prints_the_ids(tmp_path):
    ended = unpoison("publish", URL, "orders", "1", "2", "--json", cwd=tmp_path)
    assert (ended.json["source"], ended.json["created"]) == ("orders", True)
    assert ended.json["refused"] == ended.json["unknown"] == []
    assert ended.json["ids"] == [delivery.id for delivery in ready(tmp_path)]


def test_key_headers_and_id_go_with_the_message(tmp_path):
    arguments = ["--key", "customer-7", "--header", "trace=a=b", "--header", "empty=", "--id", "order-4711"]
    ended = unpoison("publish", URL, "orders", "{}", *arguments, cwd=tmp_path)
    assert ended.text == "Sent message order-4711 to 'orders', which did not exist before.\n"
    (delivery,) = ready(tmp_path)
    assert (delivery.id, delivery.key, dict(delivery.headers)) == ("order-4711", "customer-7", {"trace": "a=b", "empty": ""})


def test_a_delayed_message_is_not_ready(tmp_path):
    assert unpoison("publish", URL, "orders", "{}", "--delay", "2h", cwd=tmp_path).code == 0
    assert ready(tmp_path) == []
    broker = broker_for(f"sqlite:///{tmp_path / 'shop.db'}")
    broker.open(["orders"])
    assert broker.depth("orders").delayed == 1
    broker.close()


def test_lines_of_a_file_are_messages(tmp_path):
    (tmp_path / "orders.jsonl").write_bytes(b'{"id": 1}\r\n\n  \n{"id": 2}\n{"id": 3}')
    assert unpoison("publish", URL, "orders", "--file", "orders.jsonl", cwd=tmp_path).code == 0
    assert bodies(tmp_path) == [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}']


@pytest.mark.parametrize("source", [[], ["-"], ["--file", "-"]], ids=["nothing", "dash", "file dash"])
def test_lines_of_standard_input_are_messages(tmp_path, source):
    ended = unpoison("publish", URL, "orders", *source, cwd=tmp_path, stdin=b"1\n2\n")
    assert ended.text.startswith("Sent 2 messages to 'orders'")
    assert bodies(tmp_path) == [b"1", b"2"]


def test_raw_input_is_one_message_bit_for_bit(tmp_path):
    body = bytes(range(256)) * 1000 + b"\n"
    assert unpoison("publish", URL, "orders", "--raw", cwd=tmp_path, stdin=body).code == 0
    (tmp_path / "body.bin").write_bytes(body)
    assert unpoison("publish", URL, "orders", "--raw", "--file", "body.bin", cwd=tmp_path).code == 0
    assert unpoison("publish", URL, "orders", "--raw", "no json", cwd=tmp_path).code == 0
    assert bodies(tmp_path) == [body, body, b"no json"]


def test_raw_lines_are_sent_whatever_they_hold(tmp_path):
    assert unpoison("publish", URL, "orders", "--lines", cwd=tmp_path, stdin=b"no json\n\n\xff\x00 \r\nlast").code == 0
    assert bodies(tmp_path) == [b"no json", b"", b"\xff\x00 \r", b"last"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "truncated"),
        (b"NaN", "malformed"),
        (b'"\xff"', "byte 0xff at offset 1 is not UTF-8"),
        (b"[" * 100_000, "nested 100,000 levels deep"),
        (b"{} {}", "trailing characters"),
    ],
    ids=["open", "nan", "utf-8", "deep", "two"],
)
def test_nothing_of_a_file_with_a_bad_line_is_sent(tmp_path, line, why):
    good = b'{"text": "%s"}\n' % (b"x" * 1000)
    (tmp_path / "orders.jsonl").write_bytes(good * 3000 + b"\n" + line + b"\n" + good)
    ended = unpoison("publish", URL, "orders", "--file", "orders.jsonl", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: Line 3,002 is not JSON: ")
    assert why in ended.err
    assert not (tmp_path / "shop.db").exists()


def test_a_bad_line_on_standard_input_stops_there_and_says_what_was_sent(tmp_path):
    good = b'{"text": "%s"}\n' % (b"x" * 1000)
    ended = unpoison("publish", URL, "orders", cwd=tmp_path, stdin=good * 3000 + b"oops\n" + good)
    assert ended.code == 1
    assert "Line 3,001 is not JSON" in ended.err
    sent = int(re.search(r"([0-9,]+) messages were sent before that", ended.err)[1].replace(",", ""))
    assert 0 < sent <= 3000
    assert len(bodies(tmp_path)) == sent


def test_a_payload_that_is_not_json_is_refused_before_anything_is_sent(tmp_path):
    ended = unpoison("publish", URL, "orders", "{}", "hello", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: Payload 2 ('hello') is not JSON: ")
    assert "--raw" in ended.err
    assert not (tmp_path / "shop.db").exists()


def test_what_comes_slowly_is_sent_as_it_comes(tmp_path):
    with subprocess.Popen(
        [*UNPOISON, "publish", URL, "orders"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        process.stdin.write(b'{"id": 1}\n{"id"')
        process.stdin.flush()
        broker = broker_for(f"sqlite:///{tmp_path / 'shop.db'}")
        broker.open(["orders"])
        while not broker.depth("orders").ready:  # the limit of the test ends it
            assert process.poll() is None
        broker.close()
        out, _ = process.communicate(b": 2}\n", timeout=60)
    assert (process.returncode, out) == (0, b"Sent 2 messages to 'orders'.\n")
    assert bodies(tmp_path) == [b'{"id": 1}', b'{"id": 2}']


def test_ctrl_c_is_quiet(tmp_path):
    with terminal() as (master, slave):
        process = subprocess.Popen(
            [*UNPOISON, "publish", URL, "orders"], cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, env=environment()
        )
        os.close(slave)
        said = b""
        while b"Ctrl-D ends the input." not in said:
            said += os.read(master, 1024)
        for _ in range(20):  # as a person does: once more if the first came before it was listening
            process.send_signal(signal.SIGINT)
            try:
                process.wait(3)
                break
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode == 130
        assert os.read(master, 1024).strip() == b""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sqlite:///no/such/folder/shop.db", "orders", "1"], "mkdir -p"),
        (["memory://", "orders", "1"], "no consumer would ever see"),
        ([URL, " orders ", "1"], "without spaces around it"),
    ],
    ids=["folder", "memory", "source"],
)
def test_a_broker_that_is_not_there_fails_at_once(tmp_path, arguments, said):
    ended = unpoison("publish", *arguments, cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: ")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_message_that_consumers_would_refuse_is_refused(tmp_path):
    ended = unpoison("publish", URL, "orders", '"12345678"', cwd=tmp_path, UNPOISON_MAX_BODY="9")
    assert ended.code == 1
    assert "has 10 bytes, the limit is 9" in ended.err
    assert bodies(tmp_path) == []


def test_an_id_for_several_messages_is_wrong_usage_and_sends_none(tmp_path):
    ended = unpoison("publish", URL, "orders", "--id", "x", cwd=tmp_path, stdin=b"1\n2\n")
    assert ended.code == 2
    assert "there are 2" in ended.err
    assert bodies(tmp_path) == []


def test_the_url_can_come_from_the_environment(tmp_path):
    for arguments, stdin in ((["orders", "1"], b""), (["orders"], b"2\n"), ([URL, "orders", "3"], b"")):
        elsewhere = "sqlite:///elsewhere.db" if URL in arguments else URL
        assert unpoison("publish", *arguments, cwd=tmp_path, stdin=stdin, UNPOISON_URL=elsewhere).code == 0
    assert bodies(tmp_path) == [b"1", b"2", b"3"]
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["shop.db", "orders", "1"], {}, "'shop.db' is not a URL, so no broker is named"),
        (["orders"], {}, "set the variable UNPOISON_URL"),
        ([], {}, "No broker is named"),
        ([URL], {}, "Missing argument 'SOURCE'"),
        ([], {"UNPOISON_URL": URL}, "Missing argument 'SOURCE'"),
    ],
)
def test_a_command_without_broker_or_source_is_wrong_usage(tmp_path, arguments, variables, said):
    ended = unpoison("publish", *arguments, cwd=tmp_path, **variables)
    assert (ended.code, ended.text) == (2, "")
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_url_with_a_mistake_in_it_is_not_taken_for_a_source(tmp_path):
    ended = unpoison("publish", "pigeon://x", "1", cwd=tmp_path, UNPOISON_URL=URL)
    assert ended.code == 1
    assert "names no broker" in ended.err


@pytest.mark.parametrize("option", ["--key", "--header", "--id"])
def test_text_that_is_not_utf_8_is_refused_as_by_the_api(tmp_path, option):
    text = os.fsdecode(b"a=\xff")
    ended = unpoison("publish", URL, "orders", "1", option, text, cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert "cannot be written as UTF-8" in ended.err


def test_an_integer_beyond_64_bits_is_refused_as_by_the_api(tmp_path):
    ended = unpoison("publish", URL, "orders", "1", "18446744073709551616", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert "Payload 2 ('18446744073709551616') cannot be sent: integer" in ended.err
