"""`unpoison plan --simulate`, as a person runs it."""

import re
import xml.etree.ElementTree as ET

import pytest

from tests.e2e.command_line import COLOUR, in_this_process, on_terminal, unpoison
from unpoison.cli import simulate
from unpoison.simulation.scenario import Kind

SVG = "{http://www.w3.org/2000/svg}"
SHORT = ("--rate", "20", "--length", "20s")
KINDS = [str(kind) for kind in Kind]

APP = """
from unpoison import App, Backoff

print("imported")
app = App("sqlite:///shop.db")


@app.consumer("orders", max_attempts=2, backoff=Backoff.fixed(1), depends_on="billing")
def ship(order: dict) -> None: ...


@app.consumer("mails & <more>", breaker=None, budget=None, admission=None)
def send(mail: dict) -> None: ...
"""


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def simulated(*arguments, cwd):
    ended = in_this_process("plan", "--simulate", *arguments, "--json", cwd=cwd)
    assert (ended.code, ended.err) == (0, "")
    (found,) = ended.json["simulations"]
    return found


def words(text):
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_scenario_is_told_in_figures_with_and_without_the_state_machines(kind, tmp_path):
    found = simulated(kind, *SHORT, cwd=tmp_path)
    assert (found["scenario"], found["rate"], found["length"], found["source"]) == (kind, 20, 20, None)
    on, *_, off = found["variants"]
    assert (on["name"], off["name"]) == ("all on", "all off")
    assert (on["breaker"], on["budget"], on["admission"], on["max_attempts"]) == (True, 0.2, True, 5)
    assert (off["breaker"], off["budget"], off["admission"]) == (False, None, False)
    assert on["dead"] <= off["dead"]
    assert len(on["series"]["waiting"]) == len(on["series"]["calls_per_second"])


def test_without_a_name_it_is_an_outage(tmp_path):
    assert simulated("--rate", "5", "--length", "5s", cwd=tmp_path)["scenario"] == "outage"


def test_an_outage_is_told_in_words_and_drawn(tmp_path):
    shown = in_this_process("plan", "--simulate", "outage", *SHORT, cwd=tmp_path).text
    assert shown.startswith("20 msg/s, and billing:443 is down for 20 s\n")
    assert re.search(r"^all on +0 +[12] +", shown, re.MULTILINE)
    assert "is paused: billing:443 is down, and hardly anything else succeeds." in shown
    charts = [line for line in shown.splitlines() if "█" in line or "━" in line]
    assert len(charts) >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_pipe_it_is_plain_and_fits_80_columns(kind, tmp_path):
    shown = in_this_process("plan", "--simulate", kind, *SHORT, "--each", cwd=tmp_path).text
    assert "\x1b" not in shown
    tables = shown.partition("What the consumer says")[0]
    assert max(map(len, tables.splitlines())) <= 80


def test_on_a_terminal_it_has_colours_and_uses_the_width(tmp_path):
    ended = on_terminal("plan", "--simulate", "outage", *SHORT, cwd=tmp_path, columns=110)
    lines = COLOUR.sub("", ended.text).splitlines()
    assert ended.code == 0
    assert 80 < max(map(len, lines)) <= 110
    assert "\x1b[" in ended.text


def test_on_a_narrow_terminal_no_figure_is_cut_off(tmp_path):
    shown = COLOUR.sub("", on_terminal("plan", "--simulate", "partial-outage", *SHORT, cwd=tmp_path, columns=60).text)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 60
    assert "…" not in shown
    assert lines[lines.index("without breaker") + 1].startswith("  dead letters ")


def test_each_state_machine_can_be_left_out_in_turn(tmp_path):
    found = simulated("outage", *SHORT, "--each", cwd=tmp_path)
    names = [each["name"] for each in found["variants"]]
    assert names == ["all on", "without breaker", "without budget", "without admission", "all off"]


def test_the_usual_rate_is_lower_where_much_is_judged(tmp_path):
    assert simulated("outage", "--length", "1s", cwd=tmp_path)["rate"] == 1_000
    assert simulated("outage", "--length", "1s", "--each", cwd=tmp_path)["rate"] == 100
    assert simulated("partial-outage", "--length", "1s", cwd=tmp_path)["rate"] == 100


def test_options_reach_the_simulation(tmp_path):
    given = ("--share", "50%", "--capacity", "70", "--seed", "4", "--unnamed", "--attempts", "3")
    found = simulated("partial-outage", *SHORT, *given, cwd=tmp_path)
    assert (found["share"], found["capacity"], found["seed"], found["is_named"]) == (0.5, 70, 4, False)
    assert {each["max_attempts"] for each in found["variants"]} == {3}
    assert found["variants"][-1]["charged"]["most"] == 3


def test_the_same_seed_gives_the_same_document_in_any_process(tmp_path):
    arguments = ("plan", "--simulate", "partial-outage", *SHORT, "--json")
    first, again = (unpoison(*arguments, cwd=tmp_path, PYTHONHASHSEED=seed).out for seed in ("1", "2"))
    other = in_this_process(*arguments, "--seed", "9", cwd=tmp_path).out
    assert first == again != other


def test_the_settings_of_an_app_are_those_of_its_consumers(shop):
    ended = unpoison("plan", "--simulate", "outage", *SHORT, "--app", "shop:app", "--json", cwd=shop)
    assert (ended.code, ended.err) == (0, "imported\n")
    orders, mails = ended.json["simulations"]
    assert (orders["source"], orders["dependency"]) == ("orders", "billing")
    assert [each["name"] for each in orders["variants"]] == ["as set", "all off"]
    assert {each["max_attempts"] for each in orders["variants"]} == {2}
    assert orders["variants"][0]["dead"] == 0 < orders["variants"][1]["dead"]
    assert "'orders' is paused" in orders["variants"][0]["told"][0]["text"]
    assert [each["name"] for each in mails["variants"]] == ["as set"]
    assert not (shop / "shop.db").exists()


def test_one_consumer_can_be_named(shop):
    shown = unpoison("plan", "--simulate", "poison", *SHORT, "--app", "shop:app", "--source", "orders", cwd=shop).text
    assert shown.startswith("orders\n20 msg/s, 0.1 % of them fail at every attempt, for 20 s\n")
    assert "mails" not in shown


def test_the_picture_is_whole_and_says_in_words_what_it_shows(shop):
    ended = unpoison("plan", "--simulate", "outage", *SHORT, "--app", "shop:app", "--svg", "outage.svg", cwd=shop)
    assert (ended.code, ended.err) == (0, "imported\nDrew outage.svg\n")
    picture = ET.parse(shop / "outage.svg").getroot()
    described = picture.find(f"{SVG}desc").text
    assert "20 msg/s, and billing is down for 20 s. as set: 0 dead letters" in described
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert {"orders", "mails & <more>", "as set", "all off", "Calls of billing", "Messages that wait"} <= set(texts)
    kinds = {element.get("class") for element in picture.iter(f"{SVG}rect")}
    assert {"card", "start", "down"} <= kinds
    assert max(float(element.get("y")) for element in picture.iter(f"{SVG}text")) < float(picture.get("height"))
    text = (shop / "outage.svg").read_text()
    assert "prefers-color-scheme:dark" in text
    assert "<script" not in text


def test_a_file_that_is_there_is_left_alone_before_the_work_begins(tmp_path, monkeypatch):
    (tmp_path / "outage.svg").write_text("mine")
    monkeypatch.setattr(simulate, "simulate", lambda *_: pytest.fail("it was simulated"))
    ended = in_this_process("plan", "--simulate", "outage", "--svg", "outage.svg", cwd=tmp_path)
    assert (ended.code, ended.text) == (1, "")
    assert "'outage.svg' exists and was not changed. Add --force" in ended.err
    assert (tmp_path / "outage.svg").read_text() == "mine"


def test_long_work_shows_a_bar(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(simulate, "SHOW_AFTER", 0.0)
    shares = simulate._shares(2, lambda done, total: told.append((done, total)))
    next(shares)(0.5)
    next(shares)(1.0)
    assert told == [(500, 2_000), (2_000, 2_000)]
    monkeypatch.setattr(simulate, "SHOW_AFTER", 60.0)
    next(simulate._shares(1, lambda done, total: told.append((done, total))))(0.5)
    assert len(told) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--length", "5m"], "--length belongs to a simulation. Add --simulate"),
        (["--share", "5%"], "--share belongs to a simulation"),
        (["--capacity", "5"], "--capacity belongs to a simulation"),
        (["--each"], "--each belongs to a simulation"),
        (["--unnamed"], "--unnamed belongs to a simulation"),
        (["--simulate", "outage", "--failing", "5%"], "--simulate has no --failing. Leave it out"),
        (["--simulate", "outage", "--outage", "5m"], "--simulate has no --outage. Leave it out"),
        (["--simulate", "outage", "--share", "5%"], "--simulate outage concerns all messages, so it has no --share"),
        (["--simulate", "throttling", "--unnamed"], "In --simulate throttling no dependency is down"),
        (["--simulate", "flood"], "'flood' is not one of 'outage'"),
        (["--simulate", "poison", "--share", "0"], "'0' is nobody. Write a share above 0"),
        (["--simulate", "poison", "--share", "5"], "'5' is not a share"),
        (["--simulate", "outage", "--length", "0s"], "'0s' is too short"),
        (["--simulate", "outage", "--capacity", "0"], "0 is not a rate"),
        (["--simulate", "outage", "--length", "2h"], "7,260,000 messages would arrive, and a simulation takes at most 3,000,000"),
        (["--simulate", "partial-outage", "--rate", "3000", "--length", "10m"], "or 300,000 that fail one by one"),
        (["--simulate", "outage", "--rate", "1e300"], "Error: 7e+302 messages would arrive"),
        (["--simulate", "outage", "--rate", "0.001", "--length", "36500d"], "is too long: a simulation takes at most 1 d"),
        (["--simulate", "outage", "--rate", "0.001", "--length", "10m"], "At 0.001 msg/s no message comes in 10 min"),
        (["--simulate", "outage", "--rate", "10", "--capacity", "9"], "Workers that can handle 9 msg/s fall behind at 10 msg/s"),
        (["--simulate", "outage", "--source", "orders"], "Give --app module:app too"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_2_and_says_what_to_write(tmp_path, arguments, said):
    ended = in_this_process("plan", *arguments, cwd=tmp_path)
    assert ended.code == 2
    assert said in words(ended.err)
