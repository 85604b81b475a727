"""`--where`: which letters do the dead-letter commands take, and what do they ask first?"""

import os
import subprocess
import sys

import pytest

from tests.e2e.command_line import COLOUR, UNPOISON, dead_letters, environment, in_this_process, on_terminal, terminal
from tests.e2e.test_cli_dlq import on, ready

PIANOS, DRUM = (b'{"item": "piano", "n": 1}', b'{"item": "piano", "n": 2}'), b'{"item": "drum", "n": 3}'


@pytest.fixture
def url(tmp_path):
    return dead_letters(tmp_path, *PIANOS, DRUM, error=ValueError("no"))


def ids(url, folder, *more):
    return [letter["id"] for letter in in_this_process("dlq", "ls", *on(url), *more, "--json", cwd=folder).json]


def test_ls_lists_what_matches(url, tmp_path):
    table = in_this_process("dlq", "ls", *on(url), "--where", "body.item:piano body.n>1", cwd=tmp_path)
    assert (table.code, table.err) == (0, "")
    assert [line.split()[0] for line in table.text.splitlines()[1:]] == ["orders-2"]
    assert ids(url, tmp_path, "--where", "-drum") == ["orders-1", "orders-2"]
    none = in_this_process("dlq", "ls", *on(url), "--where", "class:crash", cwd=tmp_path)
    assert none.text == "No dead letters in 'orders' match class:crash\n"


def test_ls_says_that_there_may_be_more(url, tmp_path):
    some = in_this_process("dlq", "ls", *on(url), "--where", "error:ValueError", "--limit", "2", cwd=tmp_path)
    assert len(some.text.splitlines()) == 3
    assert some.err == "Showing the first 2 that match. To see all: --limit all\n"
    assert in_this_process("dlq", "ls", *on(url), "--where", "error:ValueError", "--limit", "4", cwd=tmp_path).err == ""


def test_a_filter_that_names_a_state_needs_no_option_for_it(url, tmp_path):
    in_this_process("dlq", "discard", "orders-1", *on(url), cwd=tmp_path)
    assert ids(url, tmp_path, "--where", "state:discarded") == ["orders-1"]
    assert ids(url, tmp_path, "--where", "state:discarded", "--state", "all") == ["orders-1"]
    assert ids(url, tmp_path, "--where", "state:discarded", "--state", "dead") == []
    assert ids(url, tmp_path, "--where", "body:piano") == ["orders-2"]
    assert ids(url, tmp_path, "--where", "body:piano", "--state", "all") == ["orders-1", "orders-2"]


def test_count_counts_what_matches_in_each_state(url, tmp_path):
    in_this_process("dlq", "discard", "orders-1", *on(url), cwd=tmp_path)
    counted = in_this_process("dlq", "count", *on(url), "--where", "body.item:piano", cwd=tmp_path)
    assert counted.text == "orders: 1 dead, 0 replayed, 1 discarded\n"
    as_json = in_this_process("dlq", "count", *on(url), "--where", "body.item:piano", "--json", cwd=tmp_path)
    assert as_json.json == {"orders": {"dead": 1, "replayed": 0, "discarded": 1}}


def test_groups_counts_by_what_failed(tmp_path):
    url = dead_letters(tmp_path, *PIANOS, DRUM)
    dead_letters(tmp_path, b"{}", source="emails", error=ValueError("no"))
    (first, second) = in_this_process("dlq", "groups", "--url", url, "--json", cwd=tmp_path).json
    assert (first["count"], first["sources"], first["error_type"]) == (3, {"orders": 3}, "KeyError")
    assert (second["count"], second["sources"], second["example"]) == (1, {"emails": 1}, "emails-4")
    (only,) = in_this_process("dlq", "groups", "--url", url, "--where", "body.n>1", "--json", cwd=tmp_path).json
    assert (only["group"], only["count"]) == (first["group"], 2)
    table = in_this_process("dlq", "groups", "--url", url, cwd=tmp_path).text.splitlines()
    assert table[1].split()[:2] == [first["group"], "3"]
    assert ids(url, tmp_path, "--where", f"group:{first['group'][:6]}") == ["orders-1", "orders-2", "orders-3"]
    none = in_this_process("dlq", "groups", *on(url), "--where", "class:crash", cwd=tmp_path)
    assert none.text == "No dead letters in 'orders' match class:crash\n"


def test_a_replay_says_how_many_of_how_many_and_asks(url, tmp_path):
    arguments = ("dlq", "replay", "--where", "body.item:piano age<1h", *on(url))
    question = "Replay 2 of 3 dead letters of 'orders' that match body.item:piano age<1h?"
    refused = in_this_process(*arguments, cwd=tmp_path)
    assert (refused.code, refused.text) == (1, "")
    assert refused.err == f"Error: {question} There is no terminal to ask on: add --yes to confirm.\n"
    declined = on_terminal(*arguments, cwd=tmp_path, answer="n\n")
    assert (declined.code, f"{question} [y/N]" in COLOUR.sub("", declined.text)) == (1, True)
    assert ready(url) == 0
    agreed = on_terminal(*arguments, cwd=tmp_path, answer="y\n")
    assert agreed.code == 0
    assert "Replayed 2 dead letters." in agreed.text
    assert ids(url, tmp_path) == ["orders-3"]
    assert ready(url) == 2


def test_replay_with_yes_prints_what_it_did(url, tmp_path):
    arguments = ("dlq", "replay", "--yes", "--where", "body:piano", *on(url))
    assert in_this_process(*arguments, "--json", cwd=tmp_path).json == {"replayed": ["orders-1", "orders-2"], "gone": []}
    assert (
        in_this_process(*arguments, cwd=tmp_path).text == "No dead letters are waiting and match body:piano; nothing was sent.\n"
    )
    assert in_this_process(*arguments, "--json", cwd=tmp_path).json == {"replayed": [], "gone": []}


@pytest.mark.parametrize("verb", ["replay", "discard", "purge"])
def test_a_dry_run_changes_nothing_and_needs_no_yes(url, tmp_path, verb):
    told = in_this_process("dlq", verb, "--dry-run", "--where", "body:piano", *on(url), cwd=tmp_path)
    more = ", and 0 replayed or discarded before" if verb == "purge" else ""
    assert (told.code, told.err) == (0, "")
    assert told.text == f"It would {verb} 2 of 3 dead letters of 'orders' that match body:piano{more}. Nothing was changed.\n"
    as_json = in_this_process("dlq", verb, "--dry-run", "--where", "body:piano", *on(url), "--json", cwd=tmp_path)
    assert as_json.json == {f"would_{verb}": ["orders-1", "orders-2"]}
    assert (len(ids(url, tmp_path)), ready(url)) == (3, 0)


def test_discard_asks_and_leaves_them_visible(url, tmp_path):
    arguments = ("dlq", "discard", "--where", "body:piano", *on(url))
    refused = in_this_process(*arguments, cwd=tmp_path)
    assert refused.err.startswith("Error: Discard 2 of 3 dead letters of 'orders' that match body:piano? There is no terminal")
    assert len(ids(url, tmp_path)) == 3
    assert in_this_process(*arguments, "--yes", cwd=tmp_path).text == "Discarded 2 dead letters.\n"
    assert ids(url, tmp_path, "--state", "discarded") == ["orders-1", "orders-2"]


def test_purge_deletes_what_matches_after_the_name_was_typed(url, tmp_path):
    in_this_process("dlq", "discard", "orders-1", *on(url), cwd=tmp_path)
    arguments = ("dlq", "purge", "--where", "body:piano", *on(url))
    assert in_this_process(*arguments, cwd=tmp_path).code == 1
    question = "Delete 1 of 2 dead letters of 'orders' that match body:piano, and 1 replayed or discarded before, for good?"
    declined = on_terminal(*arguments, cwd=tmp_path, answer="yes\n", columns=200)
    assert (declined.code, question in declined.text) == (1, True)
    assert len(ids(url, tmp_path, "--state", "all")) == 3
    assert on_terminal(*arguments, cwd=tmp_path, answer="orders\n").code == 0
    assert ids(url, tmp_path, "--state", "all") == ["orders-3"]


def test_several_sources_are_asked_about_at_once(url, tmp_path):
    dead_letters(tmp_path, b'{"item": "piano"}', source="emails")
    where = ("--url", url, "--where", "body.item:piano")
    refused = in_this_process("dlq", "replay", *where, cwd=tmp_path)
    assert "Replay 3 of 4 dead letters of 'emails', 'orders' that match body.item:piano?" in refused.err
    assert in_this_process("dlq", "replay", "--yes", *where, cwd=tmp_path).text == "Replayed 3 dead letters.\n"
    assert in_this_process("dlq", "purge", "--yes", *where, cwd=tmp_path).code == 2


def test_a_filter_that_cannot_be_read_is_wrong_usage_and_is_pointed_at(url, tmp_path):
    for command in ("ls", "count", "replay", "discard", "purge"):
        ended = in_this_process(
            "dlq", command, "--yes" if command == "purge" else "--json", *on(url), "--where", "n age>1", cwd=tmp_path
        )
        assert (ended.code, ended.text) == (2, "")
        assert ended.err.endswith("Write s, m, h, d or w (seconds to weeks): age>1h\n  n age>1\n        ^\n")
    assert len(ids(url, tmp_path)) == 3


def test_a_hostile_filter_is_written_out(url, tmp_path):
    for text in ("x\x1b[2J:1", '"\x1b[2J\u202e"', "body.\x1b[2J>true"):
        ended = in_this_process("dlq", "ls", *on(url), "--where", text, cwd=tmp_path)
        assert r"\x1b" in ended.err + ended.text
        assert [character for character in "\x1b\u202e" if character in ended.err + ended.text] == []


INTERRUPTED = """
import os, signal
from unpoison.brokers.sqlite.deadletters import SQLiteDeadLetters
from unpoison.cli import main
browse = SQLiteDeadLetters.browse

def interrupted(letters, **options):
    if options.get("after"):
        os.kill(os.getpid(), signal.SIGINT)
    return browse(letters, **options)

SQLiteDeadLetters.browse = interrupted
main.main()
"""


def test_ctrl_c_while_the_letters_are_chosen_does_not_claim_that_any_was_sent(url, tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, "dlq", "replay", "--where", "body:piano", "--yes", *on(url)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert "were replayed" not in ended.stderr
    assert ready(url) == 0


def test_what_fails_between_the_question_and_the_answer_is_no_part_of_it(url, tmp_path):
    with terminal() as (master, slave):
        command = [*UNPOISON, "dlq", "replay", "--where", "body:piano", *on(url)]
        asked = subprocess.Popen(command, cwd=tmp_path, stdin=slave, stdout=slave, stderr=slave, env=environment())
        os.close(slave)
        written = b""
        while b"[y/N]" not in written:
            written += os.read(master, 65_536)
        dead_letters(tmp_path, b'{"item": "piano", "n": 4}')
        os.write(master, b"y\n")
        assert asked.wait(60) == 0
    assert ids(url, tmp_path) == ["orders-3", "orders-4"]
    assert ready(url) == 2
