"""Does the page about other libraries say what the data say, whoever they favour?"""

import re
from xml.etree import ElementTree

import pytest

from bench.peers import charts, page, results, tables, words, workers
from bench.peers.results import Cell, Drained, Grown, Growth, Killed, KillTest
from bench.peers.setups import PEERS, known

HEALTHY = [f"healthy-{number}" for number in range(1, 6)]


def cells(rate, left=0):
    return [Cell(10_000, 10_000 / rate, cpu=0.1, server_cpu=0.05, left=left) for _ in range(3)]


def drained(ours, theirs, left=0):
    found = {"raw": cells(30_000), "unpoison": cells(ours), "dramatiq-rabbitmq-1": cells(theirs, left)}
    return {"rabbitmq": Drained("3.10.8", "2026-11-15", "a machine", 3, found)}


def killed(poison, end="ended", starts=3, ran=(1, 1, 1, 1, 1), healthy="done"):
    places = {"poison": poison, **dict.fromkeys(HEALTHY, healthy), "garbage": "gone"}
    return Killed(starts, end, list(ran), places, restarts=3, seconds=30.0)


def kill_test(**outcomes):
    return KillTest("2026-11-15", {"rabbitmq": "3.10.8"}, {name.replace("_", "-"): runs for name, runs in outcomes.items()})


def said(text):
    return re.sub(r"\s+", " ", text)


def test_the_page_in_the_docs_is_what_the_data_say():
    drained_, growth = results.read(results.RESULTS, dict[str, Drained]) or {}, results.read(results.GROWTH, Growth)
    tried = results.read(results.KILL_TEST, KillTest) or KillTest("", {}, {})
    files = {page.PAGE: page.page(drained_, tried, growth), **page.pictures(drained_, tried)}
    for file, text in files.items():
        assert file.read_text() == text, f"{file.name} is not what the data say. To write it anew: python -m bench.peers page"


@pytest.mark.parametrize(
    ("ours", "theirs", "sentences"),
    [
        (
            31_000,
            7_000,
            ["1.03 × the rate of the loop by hand.", "Dramatiq (1 thread): unpoison is 4.4 × as fast."],
        ),
        (27_000, 9_000, ["0.90 × the rate of the loop by hand.", "unpoison is 3.0 × as fast."]),
        (20_000, 40_000, ["Dramatiq (1 thread): it is faster than unpoison, which reaches 0.50 × its rate"]),
    ],
    ids=["faster", "goals missed", "a peer is faster"],
)
def test_words_about_speed_follow_the_figures(ours, theirs, sentences):
    text = said(page.page(drained(ours, theirs), kill_test(), None))
    for sentence in sentences:
        assert sentence in text
    assert "goal" not in text


@pytest.mark.parametrize(
    ("ours", "theirs", "missed"),
    [
        (31_000, 7_000, []),
        (
            27_000,
            9_000,
            ["RabbitMQ: 0.90 × the loop by hand, the goal is 0.95 ×", "RabbitMQ: 3.00 × Dramatiq (1 thread), the goal is 4 ×"],
        ),
    ],
    ids=["met", "missed"],
)
def test_whoever_writes_the_page_is_told_which_goals_are_missed(ours, theirs, missed):
    assert list(words.missed("rabbitmq", drained(ours, theirs)["rabbitmq"])) == missed


def test_a_ratio_that_looks_like_wrong_arithmetic_is_explained_below_its_table():
    found = drained(30_000, 7_000)
    text = said(page.page(found, kill_test(), None)).partition("### RabbitMQ")[2].partition(" ### ")[0]
    assert "× is the median of the ratios of all rounds, so it need not be the quotient of the two medians in the table." in text


def test_what_was_left_unacknowledged_is_told_and_shown():
    text = said(page.page(drained(30_000, 7_000, left=41), kill_test(), None))
    assert "up to 41 finished messages were still unacknowledged" in text
    assert "left unacknowledged" not in said(page.page(drained(30_000, 7_000), kill_test(), None))


def test_ratios_are_taken_round_by_round():
    slow, quick = Cell(100, 1.0, 0.1, 0.1), Cell(100, 0.5, 0.1, 0.1)
    assert tables.ratios([slow, quick, quick], [quick, quick, quick]).median == 1.0
    assert tables.ratios([slow, quick, quick], [quick, quick, quick]).low == 0.5


@pytest.mark.parametrize(
    ("run", "is_flawless", "fate"),
    [
        (killed("dead-letter queue"), True, "done"),
        (killed("in the queue", "loops", 21), False, "done"),
        (killed("gone"), False, "done"),
        (killed("dead-letter queue", ran=(2, 1, 1, 1, 1)), False, "done, more than once"),
        (killed("dead-letter queue", ran=(0, 0, 0, 0, 0), healthy="in the queue"), False, "not handled"),
        (killed("dead-letter queue", ran=(0, 0, 0, 0, 0), healthy="dead-letter queue"), False, "dead-lettered"),
        (killed("dead-letter queue", ran=(0, 0, 0, 0, 0), healthy="gone"), False, "lost"),
    ],
    ids=["flawless", "loops", "poison gone", "twice", "waiting", "put aside", "lost"],
)
def test_what_counts_as_flawless_and_what_became_of_the_healthy_ones(run, is_flawless, fate):
    assert tables.is_flawless([run]) is is_flawless
    assert tables.is_flawless([killed("dead-letter queue"), run]) is is_flawless
    assert tables.fates(run)[0] == fate


def test_words_about_the_kill_test_follow_the_outcomes():
    found = kill_test(
        unpoison_rabbitmq=[killed("dead-letter queue", starts=4)],
        celery_rabbitmq_quorum=[killed("dead-letter queue", ran=(0, 0, 0, 1, 1), healthy="dead-letter queue")],
        dramatiq_rabbitmq=[killed("in the queue", "loops", 21)],
    )
    text = words.kill_test_found(found)
    assert "handled each healthy one once: unpoison on RabbitMQ." in text
    assert "up to 4 times with a limit of three" in text
    assert "dead-lettered together with the poison by Celery (quorum queue, delivery limit 3, DLX) on RabbitMQ" in text
    assert "nowhere any more" not in text
    assert "| Dramatiq | 21, not over | 5 | in the queue, run again | all done | gone |" in page.page({}, found, None)


def test_a_failure_of_ours_and_a_success_of_a_peer_are_told():
    found = kill_test(
        unpoison_rabbitmq=[killed("in the queue", "silent", ran=(0, 1, 1, 1, 1), healthy="gone")],
        arq_redis=[killed("failed result, kept an hour")],
    )
    text = words.kill_test_found(found)
    assert "one once: arq on Redis. arq keeps the poison as: failed result, kept an hour." in text
    assert "unpoison did not on RabbitMQ." in text
    assert "Healthy messages were lost without being handled, in at least one run, with unpoison on RabbitMQ." in text


def test_runs_that_differ_are_both_told():
    runs = [killed("dead-letter queue"), killed("in the queue", "silent", 1, ran=(1, 1, 0, 1, 1), healthy="in the queue")]
    text = page.page({}, kill_test(dramatiq_rabbitmq=runs), None)
    assert "| Dramatiq | 1–3 | 4–5 | dead-letter queue; or stuck | 4–5 done, 0–1 not handled | gone |" in text


def test_growth_is_told_beside_the_smaller_sizes():
    sizes = [Grown(1_000, 0.1, 0.1, 50_000_000), Grown(10_000, 0.2, 0.2, 55_000_000), Grown(100_000, 3.0, 2.0, 60_000_000)]
    text = page.page({}, kill_test(), Growth("2026-11-15", "a machine", {"redis": sizes}))
    assert "in a queue of 100,000 costs 1.50 × as much as in one of 10,000, and memory is 1.20 × that of 1,000." in said(text)
    assert "| Redis | 1,000 | 100.0 | 100.0 | 50 |" in text


def test_charts_are_whole_pictures_that_need_nothing_else():
    pictures = page.pictures(drained(30_000, 7_000), kill_test(unpoison_rabbitmq=[killed("dead-letter queue")]))
    assert set(pictures) == {page.SPEEDS, page.FATES}
    for text in pictures.values():
        ElementTree.fromstring(text)
        assert "<script" not in text
        assert "http" not in text.replace("http://www.w3.org/", "")
    assert "30,000" in pictures[page.SPEEDS]


def test_a_longer_bar_is_a_higher_figure():
    svg = charts.speeds([("here", [charts.Bar("a", 100, "theirs"), charts.Bar("b", 10_000, "ours")])])
    [short, long] = [float(width) for width in re.findall(r'<rect class="(?:ours|theirs)" [^>]*width="([\d.]+)"', svg)]
    assert long > short > 0


@pytest.mark.parametrize("setup", [*known().drain, *known().kill], ids=lambda setup: setup.name)
def test_every_setup_has_an_app_a_peer_and_pinned_packages(setup):
    assert setup.app.exists()
    assert setup.peer in {peer.name for peer in known().peer}
    if setup.peer != "unpoison":
        lines = [line for line in workers.requirements(setup.peer).read_text().splitlines() if not line.startswith("#")]
        assert lines
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)


def test_every_peer_is_measured_and_killed():
    names = {path.parent.name for path in PEERS.glob("*/requirements.txt")}
    assert names == {setup.peer for setup in known().drain}
    assert names == {setup.peer for setup in known().kill} - {"unpoison"}


def test_other_packages_are_another_environment(monkeypatch, tmp_path):
    listed = tmp_path / "requirements.txt"
    monkeypatch.setattr(workers, "requirements", lambda _: listed)
    listed.write_text("# a comment\nhuey==1.0\n")
    before = workers.python("huey")
    listed.write_text("# a comment\nhuey==2.0\n")
    assert workers.python("huey") != before
    assert workers.versions("huey") == {"huey": "2.0"}
