from pathlib import Path

import pytest

from tests import shards

pytest_plugins = ["pytester"]

HALF_AN_HOUR = 30 * 60
KILL = "tests/contract/test_kills.py::test_a_purge_killed_at_any_line"


def test_each_unit_is_in_exactly_one_shard_and_no_shard_is_empty():
    units = {f"tests/test_{n}.py": float(n % 7 * 50 + 1) for n in range(40)}
    for count in (1, 2, 6, 39, 40):
        parts = shards.split(units, count)
        assert len(parts) == count
        assert all(parts)
        assert sorted(unit for part in parts for unit in part) == sorted(units)


def test_one_unit_that_takes_longer_than_all_others_leaves_something_for_every_shard():
    for name in ("a", "m", "z"):
        units = {f"tests/{n}.py": 1.0 for n in "bcdnop"} | {f"tests/{name}.py": 1000.0}
        assert all(shards.split(units, 7))


def test_more_shards_than_units_are_refused():
    with pytest.raises(ValueError, match="2 units of tests cannot be split into 3 parts"):
        shards.split({"tests/a.py": 1.0, "tests/b.py": 1.0}, 3)


def test_units_of_one_server_stand_together():
    units = {f"tests/{folder}/test_{server}.py": 60.0 for folder in "abcd" for server in ("redis", "nats", "kafka", "sqs")}
    for part in shards.split(units, 4):
        assert len({Path(unit).stem for unit in part}) == 1


def test_a_unit_is_a_file_a_row_of_the_matrix_or_one_promise_about_kills():
    assert shards.unit_of("tests/unit/test_app.py::test_x[1-2]") == "tests/unit/test_app.py"
    row = "tests/contract/test_promises.py[rabbitmq 4.3 classic]"
    assert shards.unit_of("tests/contract/test_promises.py::test_x[rabbitmq 4.3 classic-not UTF-8]") == row
    assert shards.unit_of(f"{KILL}[redis]") == f"{KILL}[redis]"


def test_each_of_six_shards_takes_less_than_half_an_hour_on_two_processes():
    units = shards.measured()
    for part in shards.split(units, 6):
        assert shards.on_processes({unit: units[unit] for unit in part}, 2) < HALF_AN_HOUR, part


def test_tests_that_nobody_has_measured_yet_are_estimated_and_never_for_long():
    """A file that was renamed needs no new measurement before the next run."""
    tests = ["tests/a.py::test_x", "tests/a.py::test_y", *(f"tests/b.py::test_x[{n}]" for n in range(500)), "tests/c.py::test_x"]
    assert shards.seconds_of(tests, {"tests/c.py": 7.0}) == {"tests/a.py": 4.0, "tests/b.py": 60.0, "tests/c.py": 7.0}


@pytest.fixture
def suite(pytester):
    for name in ("redis", "nats", "plain"):
        pytester.makepyfile(**{f"test_{name}": "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_x(n): pass"})
    return pytester


def test_the_shards_of_a_run_together_run_every_test_once(suite):
    ran = []
    for number in (1, 2, 3):
        result = suite.runpytest_inprocess("-p", "tests.shards", "-v", f"--shard={number}/3")
        result.assert_outcomes(passed=3, deselected=6)
        ran += [line.split()[0] for line in result.outlines if "PASSED" in line]
    assert len(ran) == len(set(ran)) == 9


def test_the_tests_of_a_unit_stay_together_and_the_longest_unit_comes_first(suite, monkeypatch):
    monkeypatch.setattr(shards, "measured", lambda: {"test_nats.py": 5, "test_plain.py": 1, "test_redis.py": 9})
    result = suite.runpytest_inprocess("-p", "tests.shards", "-v", "--shard=1/1")
    files = [line.partition("::")[0] for line in result.outlines if "PASSED" in line]
    assert files == ["test_redis.py"] * 3 + ["test_nats.py"] * 3 + ["test_plain.py"] * 3


@pytest.mark.parametrize("text", ["0/6", "7/6", "2", "2/x", "2/6/1"])
def test_a_shard_that_cannot_be_is_an_error_before_anything_runs(suite, text):
    result = suite.runpytest_inprocess("-p", "tests.shards", f"--shard={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--shard {text} is not a part of the tests. The second of six is 2/6.*"])
