import pytest

from tests.e2e.command_line import COLOUR, on_terminal, unpoison

APP = """
from unpoison import App

app = App("{url}")

@app.consumer("orders", {options})
def ship(order: dict) -> None: ...
"""
ENDLESS = "max_attempts=None, max_age=None, timeout=60"


@pytest.fixture
def shop(tmp_path):
    def write(options="", url="sqlite:///shop.db"):
        (tmp_path / "shop.py").write_text(APP.format(url=url, options=options))
        assert url.startswith("memory") or unpoison("publish", url, "orders", "{}", cwd=tmp_path).code == 0
        return tmp_path

    return write


def test_what_is_in_order_is_told_in_one_line_with_what_was_checked(shop):
    folder = shop()
    ended = unpoison("doctor", "shop:app", cwd=folder)
    assert (ended.code, ended.err, ended.text.count("\n")) == (0, "", 1)
    assert ended.text.startswith(f"Nothing found in shop:app at sqlite:///{folder}/shop.db. Checked for: endless-retry, ")
    assert "damaged" not in ended.text
    assert "damaged" in unpoison("doctor", "--deep", cwd=folder, UNPOISON_URL="sqlite:///shop.db").text


def test_what_loops_comes_first_and_makes_it_fail(shop):
    folder = shop(ENDLESS)
    ended = unpoison("doctor", "shop", cwd=folder)
    assert ended.code == 1
    lines = ended.text.splitlines()
    expected = ["Loses or loops messages", "  endless-retry", "Advice", "  grace-too-short"]
    assert [line for line in lines if line in expected] == expected
    assert "      max_attempts=5" in lines
    assert lines[-1] == f"2 findings in shop at sqlite:///{folder}/shop.db; 1 loses or loops messages."


def test_advice_alone_is_no_failure(shop):
    folder = shop("timeout=60")
    ended = unpoison("doctor", "shop:app", cwd=folder)
    assert ended.code == 0
    assert ended.text.splitlines()[-1] == f"1 finding in shop:app at sqlite:///{folder}/shop.db; none loses or loops messages."


def test_as_json(shop):
    ended = unpoison("doctor", "shop:app", "--json", cwd=shop(ENDLESS))
    assert (ended.code, ended.err) == (1, "")
    document = ended.json
    assert [(each["name"], each["loses"]) for each in document["findings"]] == [
        ("endless-retry", True),
        ("grace-too-short", False),
    ]
    assert all(each["problem"] and each["fix"] for each in document["findings"])
    assert document["error"] is None
    assert {"endless-retry", "file-locked"} <= set(document["checked"])


def test_a_server_that_loses_messages(tmp_path, postgresql):
    url = postgresql.fresh()
    assert unpoison("migrate", url, cwd=tmp_path).code == 0
    careless = f"{url}?options=-c%20synchronous_commit%3Doff"
    ended = unpoison("doctor", careless, "--json", cwd=tmp_path)
    assert ended.code == 1
    assert [each["name"] for each in ended.json["findings"] if each["loses"]] == ["synchronous-commit-off"]
    assert not any(each["loses"] for each in unpoison("doctor", url, "--json", cwd=tmp_path).json["findings"])


def test_a_broker_that_is_not_there_is_an_error_after_what_the_app_itself_shows(shop):
    folder = shop(ENDLESS)
    (folder / "shop.py").write_text(
        (folder / "shop.py").read_text().replace("sqlite:///shop.db", "postgresql://u:secret@127.0.0.1:1/x")
    )
    ended = unpoison("doctor", "shop:app", cwd=folder)
    assert ended.code == 1
    assert "endless-retry" in ended.text
    assert ended.err.startswith("Error: PostgreSQL at 'postgresql://u:***@127.0.0.1:1/x'")
    assert "secret" not in ended.text + ended.err
    document = unpoison("doctor", "shop:app", "--json", cwd=folder).json
    assert document["error"].startswith("PostgreSQL at")
    assert "fsync-off" not in document["checked"]


def test_a_file_that_is_not_there_is_an_error_and_is_not_made(tmp_path):
    ended = unpoison("doctor", "sqlite:///shop.db", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert "does not exist" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_of_an_app_in_memory_only_the_settings_are_looked_at(shop):
    ended = unpoison("doctor", "shop:app", cwd=shop(url="memory://"))
    assert ended.code == 0
    assert ended.text.strip().endswith("Checked for: endless-retry, no-age-limit, no-time-limit, grace-too-short.")
    refused = unpoison("doctor", "memory://", cwd=shop(url="memory://"))
    assert (refused.code, refused.text) == (1, "")
    assert "cannot be looked at from outside" in refused.err


def test_one_source_of_an_app(shop):
    folder = shop()
    assert (
        "no consumer of 'ordres'. Its sources: 'orders'" in unpoison("doctor", "shop:app", "--source", "ordres", cwd=folder).err
    )
    assert unpoison("doctor", "shop:app", "--source", "orders", cwd=folder).code == 0
    mistyped = unpoison("doctor", "sqlite:///shop.db", "--source", "ordres", cwd=folder)
    assert "source-missing" in mistyped.text


def test_without_a_target_the_usage_is_told(tmp_path):
    ended = unpoison("doctor", cwd=tmp_path)
    assert ended.code == 2
    assert "UNPOISON_URL" in ended.err


def test_sentences_fit_a_narrow_terminal_and_what_is_to_be_copied_stays_whole(tmp_path, postgresql):
    url = postgresql.fresh()
    shown = on_terminal("doctor", url, cwd=tmp_path, columns=60)
    lines = [line.rstrip() for line in COLOUR.sub("", shown.text).splitlines()]
    assert f"      unpoison migrate {url}" in lines
    assert max(len(line) for line in lines if url not in line) <= 60
