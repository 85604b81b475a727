import re
import xml.etree.ElementTree as ET

import pytest

from tests.e2e.command_line import COLOUR, on_terminal, unpoison

SVG = "{http://www.w3.org/2000/svg}"

APP = """
from unpoison import App, Backoff, Policy

print("imported")
app = App("sqlite:///shop.db")


@app.consumer("orders", max_attempts=4, policies={ConnectionError: Policy(max_attempts=9)})
def ship(order: dict) -> None: ...


@app.consumer("mails & <more>", max_attempts=None, backoff=Backoff.fixed(30))
def send(mail: dict) -> None: ...


@app.consumer("bills", max_attempts=3, backoff=Backoff.list([60, 600]))
def bill(order: dict) -> None: ...
"""


def the_plan(*arguments, cwd):
    ended = unpoison("plan", *arguments, "--json", cwd=cwd)
    assert (ended.code, ended.err) == (0, "")
    (plan,) = ended.json["plans"]
    return plan


def words(text):
    return re.sub(r"\s+", " ", text)


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def test_five_percent_and_three_retries_add_fifteen(tmp_path):
    arguments = ["--rate", "1000", "--failing", "5%", "--retries", "3"]
    plan = the_plan(*arguments, cwd=tmp_path)
    assert plan["worst_case"] == {"retries_per_second": 150, "amplification": 0.15, "dead_per_second": 50}
    assert (plan["max_attempts"], plan["retries"]) == (4, 3)
    assert "retries, worst case 150/s +15 % 50/s" in words(unpoison("plan", *arguments, cwd=tmp_path).text)


def test_half_failing_and_five_retries_add_two_and_a_half_times_the_traffic(tmp_path):
    arguments = ["--rate", "1000", "--failing", "0.5", "--retries", "5"]
    worst = the_plan(*arguments, cwd=tmp_path)["worst_case"]
    assert (worst["retries_per_second"], worst["amplification"]) == (2500, 2.5)
    shown = words(unpoison("plan", *arguments, cwd=tmp_path).text)
    assert "retries, worst case 2,500/s +250 % 500/s" in shown
    assert "Warning: With 50 % failing, retries may come to +250 % of the traffic" in shown


def test_the_schedule_is_that_of_the_backoff(tmp_path):
    plan = the_plan("--attempts", "4", "--base", "500ms", "--max", "1m", "--no-jitter", cwd=tmp_path)
    assert [step["delay"] for step in plan["schedule"]] == [[0.5, 0.5], [1, 1], [2, 2]]
    assert plan["last_start"] == {"p50": 3.5, "p90": 3.5, "p99": 3.5, "max": 3.5}
    plan = the_plan("--delays", "1s,5s,2m", "--attempts", "5", "--jitter", cwd=tmp_path)
    assert [step["delay"] for step in plan["schedule"]] == [[0, 1], [0, 5], [0, 120], [0, 120]]
    assert plan["last_start"]["p50"] < plan["last_start"]["p99"] < plan["last_start"]["max"] == 246


def test_the_same_seed_gives_the_same_document_and_another_one_does_not(tmp_path):
    first, again, other = (unpoison("plan", "--json", "--seed", seed, cwd=tmp_path).out for seed in ("5", "5", "6"))
    assert first == again != other


def test_the_settings_of_an_app_are_those_of_its_consumers(shop):
    ended = unpoison("plan", "--app", "shop:app", "--rate", "200", "--json", cwd=shop)
    assert ended.code == 0
    assert ended.err == "imported\n"
    orders, mails, bills = ended.json["plans"]
    assert (orders["source"], orders["max_attempts"], orders["rate"]) == ("orders", 4, 200)
    assert [warning["name"] for warning in orders["warnings"]] == ["outage", "policy"]
    assert (mails["max_attempts"], mails["retries"], mails["schedule"]) == (None, None, None)
    assert [warning["name"] for warning in mails["warnings"]] == ["no-limit"]
    assert [step["delay"] for step in bills["schedule"]] == [[60, 60], [600, 600]]
    assert not (shop / "shop.db").exists()


def test_one_consumer_can_be_named(shop):
    shown = unpoison("plan", "--app", "shop:app", "--source", "bills", cwd=shop).text
    assert "Backoff: delays 1 min, 10 min, no jitter" in shown
    assert "orders" not in shown


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_it_fits_the_width(tmp_path, columns):
    ended = on_terminal("plan", "--attempts", "30", "--no-jitter", cwd=tmp_path, columns=columns)
    lines = COLOUR.sub("", ended.text).splitlines()
    assert ended.code == 0
    assert max(map(len, lines)) <= columns
    assert max(line.count("█") for line in lines) > columns / 4
    assert "\x1b[" in ended.text


def test_in_a_pipe_it_is_plain(tmp_path):
    shown = unpoison("plan", cwd=tmp_path).text
    assert "\x1b" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines() if "█" in line) <= 80


@pytest.mark.parametrize("arguments", ["--attempts 1", "--backoff immediate", "--failing 0", "--attempts 100"])
def test_the_ends_of_the_range_can_be_planned(tmp_path, arguments):
    ended = unpoison("plan", *arguments.split(), "--svg", "plan.svg", cwd=tmp_path)
    assert ended.code == 0
    assert ET.parse(tmp_path / "plan.svg").getroot().tag == f"{SVG}svg"


def test_the_picture_is_whole_and_says_in_words_what_it_shows(shop):
    ended = unpoison("plan", "--app", "shop:app", "--svg", "plan.svg", cwd=shop)
    assert (ended.code, ended.err) == (0, "imported\nDrew plan.svg\n")
    picture = ET.parse(shop / "plan.svg").getroot()
    assert picture.find(f"{SVG}title").text == "What retries add, and when they come"
    assert "retries, worst case: 150/s, +15 %." in picture.find(f"{SVG}desc").text
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert {"orders", "mails & <more>", "bills", "attempt 4", "150/s"} <= set(texts)
    bars = [element for element in picture.iter(f"{SVG}rect") if element.get("class") == "retry"]
    assert len(bars) == 4
    height = float(picture.get("height"))
    assert max(float(element.get("y")) for element in picture.iter(f"{SVG}text")) < height
    text = (shop / "plan.svg").read_text()
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in text


def test_bars_are_as_long_as_what_they_stand_for(tmp_path):
    unpoison("plan", "--failing", "50%", "--retries", "5", "--svg", "plan.svg", cwd=tmp_path)
    picture = ET.parse(tmp_path / "plan.svg").getroot()
    widths = {element.get("class"): float(element.get("width")) for element in reversed(list(picture.iter(f"{SVG}rect")))}
    assert widths["retry"] == pytest.approx(2.5 * widths["first"], rel=0.01)
    assert widths["down"] == pytest.approx(5 * widths["first"], rel=0.01)


def test_a_file_that_is_there_is_left_alone_unless_forced(tmp_path):
    (tmp_path / "plan.svg").write_text("mine")
    ended = unpoison("plan", "--svg", "plan.svg", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert ended.err == "Error: 'plan.svg' exists and was not changed. Add --force to overwrite it, or name another file.\n"
    assert (tmp_path / "plan.svg").read_text() == "mine"
    assert unpoison("plan", "--svg", "plan.svg", "--force", cwd=tmp_path).code == 0
    assert (tmp_path / "plan.svg").read_text().startswith("<svg ")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    ended = unpoison("plan", "--svg", "no/plan.svg", cwd=tmp_path)
    assert ended.code == 1
    assert ended.err == "Error: 'no/plan.svg' cannot be written: No such file or directory. Name another file for --svg.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rate", "0"], "0 is not a rate"),
        (["--rate", "-5"], "-5 is not a rate"),
        (["--rate", "nan"], "nan is not a rate"),
        (["--rate", "inf"], "inf is not a rate"),
        (["--failing", "5"], "'5' is not a share of the traffic. Write 5% or 0.05"),
        (["--failing", "120%"], "'120%' is not a share"),
        (["--failing", "some"], "'some' is not a share"),
        (["--attempts", "0"], "0 is not in the range"),
        (["--attempts", "3", "--retries", "2"], "Give one of them"),
        (["--base", "soon"], "'soon' is not a duration"),
        (["--base", "2m"], "--max 60s is shorter than --base 120s"),
        (["--delays", "1s,,5s"], "'' is not a duration"),
        (["--outage", "0s"], "'0s' is too short"),
        (["--backoff", "fixed", "--max", "5s"], "--backoff fixed has no --max"),
        (["--backoff", "exponential", "--delays", "1s"], "--backoff exponential has no --delays"),
        (["--backoff", "immediate", "--jitter"], "has no delay that --jitter could spread"),
        (["--backoff", "delays"], "--delays 1s,5s,30s"),
        (["--source", "orders"], "Give --app module:app too"),
        (["--app", "shop:app", "--base", "5s"], "Leave out --base, or --app"),
        (["--app", "shop:app", "--no-jitter"], "Leave out --jitter or --no-jitter, or --app"),
        (["--app", "shop:app", "--source", "piano"], "Its sources are 'orders', 'mails & <more>', 'bills'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_2_and_says_what_to_write(shop, arguments, said):
    ended = unpoison("plan", *arguments, "--svg", "plan.svg", cwd=shop)
    assert ended.code == 2
    assert said in words(ended.err)
    assert not (shop / "plan.svg").exists()


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--rate", "1000000", "--failing", "99.9%", "--attempts", "100", "--base", "47s", "--max", "59m", "--outage", "2h"],
        ["--rate", "12345", "--retries", "1", "--no-jitter", "--base", "12345s", "--max", "1d"],
        ["--rate", "0.5", "--attempts", "1"],
    ],
    ids=["as it is", "much", "long", "little"],
)
def test_a_plan_fits_the_terminal_and_nothing_of_it_is_cut(tmp_path, arguments, columns):
    shown = COLOUR.sub("", on_terminal("plan", *arguments, cwd=tmp_path, columns=columns).text)
    assert max(len(line.rstrip("\r")) for line in shown.splitlines()) <= columns
    assert "…" not in shown
