"""How are the tests spread over processes and over several runs?

A *unit* is what stays together: the tests of a file, since some of them share a server that is theirs alone; in the files of the
contract, whose servers all tests share, those of one row of the matrix; and of the promises about kills each one, since they take
minutes. xdist gives whole units to its processes.

`--shard 2/6` runs the second of six parts. They are cut from one line of all units, so that each takes about as long, by the
seconds in durations.json; in that line the units of one server stand together, so that few parts start it.
`--record-durations` renews those seconds.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

DURATIONS = Path(__file__).parent / "durations.json"
SECONDS_OF_A_TEST, SECONDS_OF_A_UNIT = 2.0, 60.0
"""Of tests that were not measured yet, and of a unit of such tests at most."""

SERVERS = ("kafka", "rabbitmq", "redis", "nats", "postgresql", "sqs")
SINGLE, BY_ROW = "tests/contract/test_kills.py", ("tests/contract/test_promises.py", "tests/contract/test_isolation.py")
ALL_BUT_PROOFS = "not proof"


def unit_of(nodeid: str) -> str:
    file, _, test = nodeid.partition("::")
    if file == SINGLE:
        return nodeid
    if file in BY_ROW:
        row = re.search(r"\[([^-\]]+)", test)
        return f"{file}[{row[1] if row else ''}]"
    return file


def split(units: Mapping[str, float], count: int) -> list[list[str]]:
    """So many parts of about the same length, none of them empty, each unit in exactly one."""
    if not 0 < count <= len(units):
        raise ValueError(f"{len(units)} units of tests cannot be split into {count} parts: each part needs one at least.")
    line = sorted(units, key=lambda unit: (_server(unit), unit))
    parts: list[list[str]] = []
    for after in reversed(range(count)):
        fair = sum(units[unit] for unit in line) / (after + 1)
        part = [line.pop(0)]
        while len(line) > after and (after == 0 or sum(units[unit] for unit in part) + units[line[0]] / 2 <= fair):
            part.append(line.pop(0))
        parts.append(part)
    return parts


def _server(unit: str) -> str:
    return next((name for name in SERVERS if name in unit), "")


def seconds_of(tests: Iterable[str], measured: Mapping[str, float]) -> dict[str, float]:
    """How long each unit of these tests takes."""
    numbers = Counter(map(unit_of, tests))
    return {unit: measured.get(unit, min(number * SECONDS_OF_A_TEST, SECONDS_OF_A_UNIT)) for unit, number in numbers.items()}


def on_processes(units: Mapping[str, float], count: int) -> float:
    """Seconds that these units take on so many processes, each taking the longest that is left when it is free."""
    processes = [0.0] * count
    for seconds in sorted(units.values(), reverse=True):
        processes[processes.index(min(processes))] += seconds
    return max(processes)


def measured() -> dict[str, float]:
    found: dict[str, float] = json.loads(DURATIONS.read_text())
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shards")
    group.addoption("--shard", metavar="N/OF", help="run one of several parts of the tests, for example 2/6")
    group.addoption("--record-durations", action="store_true", help="write to tests/durations.json how long the tests took")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--shard"):
        _shard(config.getoption("--shard"))  # an error of the command line, before anything runs
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        if config.option.markexpr != ALL_BUT_PROOFS or config.option.keyword:
            raise pytest.UsageError("--record-durations needs whole units: run it with make durations, without -k.")
        config.pluginmanager.register(_Recorder())


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--shard {text} is not a part of the tests. The second of six is 2/6.")
    return int(found[1]), int(found[2])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of one unit one after the other, and of one shard only."""
    first = {unit: place for place, unit in reversed([*enumerate(unit_of(item.nodeid) for item in items)])}
    items.sort(key=lambda item: first[unit_of(item.nodeid)])
    if not config.getoption("--shard"):
        return
    number, count = _shard(config.getoption("--shard"))
    seconds = seconds_of((item.nodeid for item in items), measured())
    try:
        chosen = set(split(seconds, count)[number - 1])
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    others = [item for item in items if unit_of(item.nodeid) not in chosen]
    mine = [item for item in items if unit_of(item.nodeid) in chosen]
    # The longest first: one that begins last would keep a single process busy while the others have nothing to do.
    items[:] = sorted(mine, key=lambda item: -seconds[unit_of(item.nodeid)])
    config.hook.pytest_deselected(items=others)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - needed with -n only

    class ByUnit(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return unit_of(nodeid)

    return ByUnit(config, log) if config.getvalue("dist") == "loadfile" else None


class _Recorder:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[unit_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = measured() if DURATIONS.exists() else {}
        known |= {unit: math.ceil(seconds) for unit, seconds in self._seconds.items()}
        there = {unit: seconds for unit, seconds in known.items() if Path(unit.partition("[")[0].partition("::")[0]).exists()}
        DURATIONS.write_text(json.dumps(there, indent=0, sort_keys=True) + "\n")
