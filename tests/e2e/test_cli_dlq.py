import os
import subprocess
import sys

import pytest

from tests.e2e.command_line import COLOUR, UNPOISON, dead_letters, environment, on_terminal, unpoison
from unpoison.brokers import broker_for
from unpoison.model.wording import json_text

HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold red]:bomb:\u202e\x9b2J\r\n\t{link=x}"


def on(url, source="orders"):
    return "--url", url, "--source", source


def ready(url, source="orders"):
    broker = broker_for(url)
    broker.open([source])
    try:
        return broker.depth(source).ready
    finally:
        broker.close()


def test_ls_shows_one_line_for_each_letter(tmp_path):
    url = dead_letters(tmp_path, b'{"item": "piano"}', b"{}")
    ended = unpoison("dlq", "ls", *on(url), cwd=tmp_path)
    heading, *lines = ended.text.splitlines()
    assert ended.code == 0
    assert heading.split() == ["ID", "WHEN", "SOURCE", "CLASSIFICATION", "ERROR", "ATTEMPTS", "FINGERPRINT"]
    assert [line.split()[0] for line in lines] == ["orders-1", "orders-2"]
    assert all("permanent" in line and "KeyError: 'piano'" in line for line in lines)


@pytest.mark.parametrize(
    ("columns", "heading"),
    [
        (120, ["ID", "WHEN", "SOURCE", "CLASSIFICATION", "ERROR", "ATTEMPTS", "FINGERPRINT"]),
        (80, ["ID", "WHEN", "CLASS", "ERROR", "ATT", "FINGERPRINT"]),
        (60, ["ID", "WHEN", "CLASS", "ERROR", "ATT"]),
        (50, ["ID", "CLASS", "ERROR"]),
        (30, ["orders-1", "permanent"]),
    ],
)
def test_ls_keeps_to_the_width_of_a_terminal_and_always_shows_the_error(tmp_path, columns, heading):
    url = dead_letters(tmp_path, b"{}", error=ValueError("x" * 200))
    lines = COLOUR.sub("", on_terminal("dlq", "ls", *on(url), cwd=tmp_path, columns=columns).text).splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == heading
    assert lines[1].split()[0 if columns == 30 else heading.index("ERROR") + 2 * ("WHEN" in heading)] == "ValueError:"
    assert "x…" in lines[1]


def test_without_a_source_all_sources_of_a_broker_are_listed(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    assert unpoison("dlq", "ls", "--url", url, cwd=tmp_path).code == 0
    dead_letters(tmp_path, b"3", source="emails")
    assert [letter["source"] for letter in unpoison("dlq", "ls", "--json", cwd=tmp_path, UNPOISON_URL=url).json] == [
        "orders",
        "orders",
        "emails",
    ]
    heading, *lines = unpoison("dlq", "ls", "--url", url, cwd=tmp_path).text.splitlines()
    at = heading.index("SOURCE")
    assert [line[at:].split()[0] for line in lines] == ["orders", "orders", "emails"]
    assert unpoison("dlq", "count", "--url", url, "--json", cwd=tmp_path).json == {
        "emails": {"dead": 1, "replayed": 0, "discarded": 0},
        "orders": {"dead": 2, "replayed": 0, "discarded": 0},
    }
    assert unpoison("dlq", "replay", "emails-3", "--url", url, cwd=tmp_path).text == "Replayed emails-3.\n"
    which = unpoison("dlq", "purge", "--yes", "--url", url, cwd=tmp_path)
    assert (which.code, which.err.splitlines()[-1]) == (2, "Error: Add --source NAME. Sources here: emails, orders")


def test_a_broker_that_was_never_used_has_no_dead_letters(tmp_path):
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert unpoison("migrate", url, cwd=tmp_path).code == 0
    assert unpoison("dlq", "ls", "--url", url, "--json", cwd=tmp_path).json == []
    said = "No dead letters: unpoison has not been used with any source there.\n"
    assert unpoison("dlq", "ls", "--url", url, cwd=tmp_path).text == said
    assert unpoison("dlq", "count", "--url", url, cwd=tmp_path).text == said
    assert unpoison("dlq", "show", "orders-1", "--url", url, cwd=tmp_path).code == 1


def test_ls_json_is_one_array_of_letters(tmp_path):
    url = dead_letters(tmp_path, b'{"item": "piano"}', b"\xff\x00", key="customer-7", headers={"trace": "abc"})
    ended = unpoison("dlq", "ls", *on(url), "--json", cwd=tmp_path)
    first, second = ended.json
    assert (ended.code, ended.err) == (0, "")
    assert first["body"] == '{"item": "piano"}'
    assert (first["key"], first["headers"], first["state"]) == ("customer-7", {"trace": "abc"}, "dead")
    assert (second["body"], second["encoding"]) == ("/wA=", "base64")


def test_ls_says_how_many_more_there_are(tmp_path):
    url = dead_letters(tmp_path, *[b"{}"] * 52)
    table = unpoison("dlq", "ls", *on(url), cwd=tmp_path)
    assert (len(table.text.splitlines()), table.err) == (51, "Showing 50 of 52. To see all: --limit all\n")
    few = unpoison("dlq", "ls", *on(url), "--json", "--limit", "3", cwd=tmp_path)
    assert (len(few.json), few.err) == (3, "Showing 3 of 52. To see all: --limit all\n")
    assert len(unpoison("dlq", "ls", *on(url), "--json", cwd=tmp_path).json) == 52
    assert len(unpoison("dlq", "ls", *on(url), "--limit", "all", cwd=tmp_path).text.splitlines()) == 53


def test_an_empty_dlq_is_said_and_is_an_empty_array(tmp_path):
    url = dead_letters(tmp_path)
    assert unpoison("dlq", "ls", *on(url), cwd=tmp_path).text == "No dead letters in 'orders'.\n"
    assert unpoison("dlq", "ls", *on(url), "--json", cwd=tmp_path).json == []


def test_show_tells_what_happened_first_and_then_everything_else(tmp_path):
    url = dead_letters(tmp_path, b'{"item":"piano"}', key="customer-7", headers={"trace": "abc"})
    shown = unpoison("dlq", "show", "orders-1", *on(url), cwd=tmp_path).text
    lines = shown.splitlines()
    assert lines[0] == "Dead letter orders-1 (dead)"
    assert lines[1].startswith("permanent: ")
    order = [
        "KeyError: 'piano'",
        "customer-7",
        "Body: 16 bytes, JSON",
        '    "item": "piano"',
        "Headers",
        "trace: abc",
        "Traceback",
    ]
    positions = [shown.index(text) for text in order]
    assert positions == sorted(positions)


def test_show_finds_a_letter_by_the_id_of_its_message_and_prints_it_as_json(tmp_path):
    url = dead_letters(tmp_path, b"{}", id="order-4711")
    letter = unpoison("dlq", "show", "order-4711", *on(url), "--json", cwd=tmp_path).json
    assert (letter["id"], letter["message_id"]) == ("orders-1", "order-4711")


@pytest.mark.parametrize("body", [b"\x00\xff\x1b[2J\n", b"", '{"größe": 1}\r\n'.encode(), bytes(range(256)) * 300])
def test_the_body_comes_back_bit_for_bit(tmp_path, body):
    url = dead_letters(tmp_path, body)
    assert unpoison("dlq", "show", "orders-1", *on(url), "--body", cwd=tmp_path).out == body


def test_a_body_that_a_terminal_would_act_on_is_not_written_to_one(tmp_path):
    url = dead_letters(tmp_path, b"\x1b[2J", b"harmless")
    refused = on_terminal("dlq", "show", "orders-1", *on(url), "--body", cwd=tmp_path)
    assert refused.code == 1
    assert b"\x1b" not in refused.out
    assert "> body.bin" in refused.text
    assert on_terminal("dlq", "show", "orders-2", *on(url), "--body", cwd=tmp_path).out == b"harmless"


@pytest.mark.parametrize(
    "command", [["ls"], ["show", "orders-1"], ["replay", "orders-1"], ["discard", HOSTILE], ["show", "nope\x1b[2J"]]
)
def test_nothing_that_somebody_else_wrote_acts_on_the_terminal(tmp_path, command):
    url = dead_letters(tmp_path, HOSTILE.encode(), id=HOSTILE, key=HOSTILE, headers={HOSTILE: HOSTILE}, error=ValueError(HOSTILE))
    shown = COLOUR.sub("", on_terminal("dlq", *command, *on(url), cwd=tmp_path, columns=400).text).replace("\r\n", "\n")
    assert [character for character in "\x1b\x07\x9b\u202e\r" if character in shown] == []
    if command[0] in ("ls", "show") and "nope" not in command[-1]:
        assert r"\x1b]0;owned\x07\x1b[31m[bold red]:bomb:\u202e\x9b2J\r" in shown


def test_json_of_a_hostile_letter_is_harmless_and_still_means_the_same(tmp_path):
    url = dead_letters(tmp_path, HOSTILE.encode())
    ended = unpoison("dlq", "ls", *on(url), "--json", cwd=tmp_path)
    assert ended.json[0]["body"] == HOSTILE
    assert [character for character in "\x1b\x07\x9b\u202e\r" if character in ended.text] == []


def test_no_colour_where_there_is_no_terminal_or_where_it_is_not_wanted(tmp_path):
    url = dead_letters(tmp_path, b"{}")
    assert b"\x1b" not in unpoison("dlq", "ls", *on(url), cwd=tmp_path).out
    assert b"\x1b[3" in on_terminal("dlq", "ls", *on(url), cwd=tmp_path).out
    assert b"\x1b[3" not in on_terminal("dlq", "ls", *on(url), cwd=tmp_path, NO_COLOR="1").out


def test_replay_sends_the_letters_that_were_named_and_no_others(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2", b"3")
    ended = unpoison("dlq", "replay", "orders-1", "orders-3", *on(url), "--json", cwd=tmp_path)
    assert ended.json == {"replayed": ["orders-1", "orders-3"], "gone": []}
    assert ready(url) == 2
    states = unpoison("dlq", "ls", *on(url), "--state", "all", "--json", cwd=tmp_path).json
    assert [letter["state"] for letter in states] == ["replayed", "dead", "replayed"]


def test_a_mistyped_id_among_others_changes_nothing(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    ended = unpoison("dlq", "replay", "orders-1", "orders-99", *on(url), cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith(
        "Error: Dead letter 'orders-99' of 'orders' does not exist. To see what is there: unpoison dlq ls "
    )
    assert ready(url) == 0


def test_a_letter_is_replayed_once(tmp_path):
    url = dead_letters(tmp_path, b"1")
    assert unpoison("dlq", "replay", "orders-1", *on(url), cwd=tmp_path).text == "Replayed orders-1.\n"
    again = unpoison("dlq", "replay", "orders-1", *on(url), cwd=tmp_path)
    assert again.code == 1
    assert "was already replayed" in again.err
    assert ready(url) == 1


def test_replay_all_asks_on_a_terminal_and_is_refused_elsewhere(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    refused = unpoison("dlq", "replay", "--all", *on(url), cwd=tmp_path)
    assert refused.code == 1
    assert "add --yes" in refused.err
    declined = on_terminal("dlq", "replay", "--all", *on(url), cwd=tmp_path, answer="n\n")
    assert declined.code == 1
    assert "Send 2 dead letters to 'orders' again? [y/N]" in declined.text
    assert declined.text.endswith("Nothing was changed.\r\n")
    assert ready(url) == 0
    agreed = on_terminal("dlq", "replay", "--all", *on(url), cwd=tmp_path, answer="y\n")
    assert agreed.code == 0
    assert "Replayed 2 dead letters." in agreed.text
    assert ready(url) == 2


def test_replay_all_with_yes_prints_what_it_did(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    assert unpoison("dlq", "replay", "--all", "--yes", *on(url), "--json", cwd=tmp_path).json["replayed"] == [
        "orders-1",
        "orders-2",
    ]
    assert "nothing was sent" in unpoison("dlq", "replay", "--all", *on(url), cwd=tmp_path).text


def test_discarded_letters_stay_visible(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    assert unpoison("dlq", "discard", "orders-1", *on(url), "--json", cwd=tmp_path).json == {
        "discarded": ["orders-1"],
        "gone": [],
    }
    assert [letter["id"] for letter in unpoison("dlq", "ls", *on(url), "--json", cwd=tmp_path).json] == ["orders-2"]
    discarded = unpoison("dlq", "ls", *on(url), "--state", "discarded", "--json", cwd=tmp_path).json
    assert [letter["id"] for letter in discarded] == ["orders-1"]


def test_purge_deletes_only_after_the_name_of_the_source_was_typed(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2")
    unpoison("dlq", "discard", "orders-1", *on(url), cwd=tmp_path)
    assert unpoison("dlq", "purge", *on(url), cwd=tmp_path).code == 1
    assert on_terminal("dlq", "purge", *on(url), cwd=tmp_path, answer="yes\n").code == 1
    assert len(unpoison("dlq", "ls", *on(url), "--state", "all", "--json", cwd=tmp_path).json) == 2
    assert on_terminal("dlq", "purge", *on(url), cwd=tmp_path, answer="orders\n").code == 0
    assert unpoison("dlq", "ls", *on(url), "--state", "all", "--json", cwd=tmp_path).json == []


def test_purge_with_yes_counts(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2", b"3")
    unpoison("dlq", "discard", "orders-1", *on(url), cwd=tmp_path)
    assert unpoison("dlq", "purge", "--yes", *on(url), "--json", cwd=tmp_path).json == {"purged": 2, "history": 1}


def test_purge_of_the_history_leaves_what_waits(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2", b"3")
    assert unpoison("dlq", "discard", "orders-1", "orders-2", *on(url), cwd=tmp_path).code == 0
    some = unpoison("dlq", "purge", "--history", "--where", "body:2", "--yes", *on(url), cwd=tmp_path)
    assert some.text == "Deleted 1 dead letter replayed or discarded before.\n"
    refused = unpoison("dlq", "purge", "--history", *on(url), cwd=tmp_path)
    assert "Delete 1 dead letter replayed or discarded before, for good?" in refused.err
    assert unpoison("dlq", "purge", "--history", "--yes", *on(url), "--json", cwd=tmp_path).json == {"purged": 0, "history": 1}
    assert [each["id"] for each in unpoison("dlq", "ls", *on(url), "--state", "all", "--json", cwd=tmp_path).json] == ["orders-3"]


def test_an_app_knows_its_url_and_its_sources(tmp_path):
    (tmp_path / "two.py").write_text(
        "from unpoison import App\n"
        "app = App('sqlite:///shop.db')\n"
        "@app.consumer('orders')\ndef ship(order): ...\n"
        "@app.consumer('emails')\ndef send(email): ...\n"
    )
    dead_letters(tmp_path, b"1", b"2")
    dead_letters(tmp_path, b"3", source="emails")
    both = unpoison("dlq", "ls", "--app", "two:app", "--json", cwd=tmp_path).json
    assert [letter["source"] for letter in both] == ["orders", "orders", "emails"]
    one = unpoison("dlq", "ls", "--app", "two:app", "--source", "emails", "--json", cwd=tmp_path).json
    assert [letter["body"] for letter in one] == ["3"]
    which = unpoison("dlq", "replay", "--all", "--yes", "--app", "two:app", cwd=tmp_path)
    assert which.code == 2
    assert "orders, emails" in which.err
    emails = both[2]["id"]
    assert unpoison("dlq", "replay", emails, "--app", "two.py:app", "--json", cwd=tmp_path).json["replayed"] == [emails]
    missing = unpoison("dlq", "show", "nope", "--app", "two:app", cwd=tmp_path)
    assert missing.code == 1
    assert missing.err.startswith(
        "Error: Dead letter 'nope' is in none of 'orders', 'emails'. To see what is there: unpoison dlq"
    )


def test_a_source_of_an_app_that_was_never_used_is_empty(tmp_path):
    (tmp_path / "new.py").write_text(
        "from unpoison import App\napp = App('sqlite:///shop.db')\n@app.consumer('unused')\ndef ship(order): ...\n"
    )
    dead_letters(tmp_path)
    assert unpoison("dlq", "ls", "--app", "new:app", cwd=tmp_path).text == "No dead letters in 'unused'.\n"


def test_one_message_id_in_several_letters_has_to_be_told_apart(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2", id="same")
    dead_letters(tmp_path, source="emails")
    (tmp_path / "both.py").write_text(
        "from unpoison import App\n"
        "app = App('sqlite:///shop.db')\n"
        "@app.consumer('orders')\ndef ship(order): ...\n"
        "@app.consumer('emails')\ndef send(email): ...\n"
    )
    for where in (on(url), ["--app", "both:app"]):
        ended = unpoison("dlq", "show", "same", *where, cwd=tmp_path)
        assert ended.code == 1
        assert "orders-1, orders-2" in ended.err


def test_looking_creates_nothing(tmp_path):
    missing = unpoison("dlq", "ls", "--url", "sqlite:///typo.db", "--source", "orders", cwd=tmp_path)
    assert missing.code == 1
    assert missing.err.startswith("Error: The SQLite file 'typo.db' does not exist")
    assert list(tmp_path.iterdir()) == []
    url = dead_letters(tmp_path)
    wrong = unpoison("dlq", "ls", *on(url, "ordres"), cwd=tmp_path)
    assert wrong.code == 1
    assert "'ordres' does not exist" in wrong.err
    assert "'orders'" in wrong.err


def test_the_url_can_come_from_the_environment(tmp_path):
    url = dead_letters(tmp_path, b"1")
    assert len(unpoison("dlq", "ls", "--source", "orders", "--json", cwd=tmp_path, UNPOISON_URL=url).json) == 1


def test_a_broker_of_one_process_has_nothing_to_show_to_another(tmp_path):
    ended = unpoison("dlq", "ls", *on("memory://"), cwd=tmp_path)
    assert ended.code == 1
    assert "app.dlq(" in ended.err


def test_a_reader_that_has_left_is_no_error_worth_a_word(tmp_path):
    url = dead_letters(tmp_path, b"1")
    for arguments in (["ls", "--json"], ["ls"], ["show", "orders-1"], ["show", "orders-1", "--body"]):
        read, write = os.pipe()
        os.close(read)
        ended = subprocess.run(
            [*UNPOISON, "dlq", *arguments, *on(url)],
            cwd=tmp_path,
            stdout=write,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=60,
            check=False,
        )
        os.close(write)
        assert (ended.returncode, ended.stderr) == (1, b"")


def test_the_table_can_be_searched_in_a_pipe_whatever_the_width(tmp_path):
    url = dead_letters(tmp_path, b"{}", error=ValueError("a long story " * 15 + "with an end"))
    assert "with an end" in unpoison("dlq", "ls", *on(url), cwd=tmp_path, COLUMNS="40").text


def test_a_letter_in_json_has_every_field_that_was_promised(tmp_path):
    url = dead_letters(tmp_path, b"{}")
    promised = """id source key body headers attempts classification rule error_type error traceback fingerprint first_failed_at
        last_failed_at consumer code_version original crash replays state note owner"""
    assert set(promised.split()) - set(unpoison("dlq", "show", "orders-1", *on(url), "--json", cwd=tmp_path).json) == set()


def test_count_says_how_many_are_in_each_state_of_each_source(tmp_path):
    url = dead_letters(tmp_path, b"1", b"2", b"3")
    unpoison("dlq", "replay", "orders-1", *on(url), cwd=tmp_path)
    assert unpoison("dlq", "count", *on(url), cwd=tmp_path).text == "orders: 2 dead, 1 replayed, 0 discarded\n"
    assert unpoison("dlq", "count", *on(url), "--json", cwd=tmp_path).json == {
        "orders": {"dead": 2, "replayed": 1, "discarded": 0}
    }


STOPPED_IN_THE_MIDDLE = """
import os, signal
from unpoison.cli import main
from unpoison import deadletters
from unpoison.brokers.sqlite.deadletters import SQLiteDeadLetters

deadletters.PAGE = 10
replay = SQLiteDeadLetters.replay

def interrupted(letters, ids):
    if "orders-11" in ids:
        os.kill(os.getpid(), signal.SIGINT)
    return replay(letters, ids)

SQLiteDeadLetters.replay = interrupted
main.main()
"""


def test_ctrl_c_in_the_middle_of_a_replay_says_how_far_it_came_and_leaves_the_rest(tmp_path):
    url = dead_letters(tmp_path, *[b"{}"] * 30)
    command = [sys.executable, "-c", STOPPED_IN_THE_MIDDLE, "dlq", "replay", "--all", "--yes", *on(url)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.startswith("Stopped: 10 of 30 dead letters of 'orders' were replayed. Those in progress are either ")
    assert ready(url) == 10
    assert unpoison("dlq", "replay", "--all", "--yes", *on(url), cwd=tmp_path).text == "Replayed 20 dead letters.\n"


def test_a_json_array_of_many_letters_is_the_same_as_one_written_at_once(tmp_path):
    url = dead_letters(tmp_path, b"1", HOSTILE.encode(), b'{"a": "\\n"}')
    ended = unpoison("dlq", "ls", *on(url), "--json", cwd=tmp_path)
    assert ended.text == json_text(ended.json) + "\n"
