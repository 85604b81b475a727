"""How does docs/peers.md come about? From the data files and from setups.toml, and in no other way.

Whatever the page says of a figure is worked out from the figure: when it changes, so do the words.
"""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from bench.peers import charts, results, tables, words, workers
from bench.peers.results import GONE, Drained, Growth, KillTest
from bench.peers.setups import BROKERS, NAMES, OURS, PEERS, Setup, known

COLUMNS = 128
DOCS = PEERS.parent.parent / "docs"
PAGE = DOCS / "peers.md"
SPEEDS = DOCS / "images" / "peers-speed.svg"
FATES = DOCS / "images" / "peers-kill-test.svg"


def write() -> list[Path]:
    """Write the page and its charts; gives the files."""
    drained = results.read(results.RESULTS, dict[str, Drained]) or {}
    killed = results.read(results.KILL_TEST, KillTest) or KillTest("", {}, {})
    growth = results.read(results.GROWTH, Growth)
    files = {PAGE: page(drained, killed, growth), **pictures(drained, killed)}
    for file, text in files.items():
        file.write_text(text)
    return list(files)


def page(drained: dict[str, Drained], killed: KillTest, growth: Growth | None) -> str:
    sections = [words.OPENING, *_kill_test(killed), *_speed(drained), *_growth(growth), *_settings()]
    return "\n\n".join(_wrapped(section.strip()) for section in sections) + "\n"


def _wrapped(section: str) -> str:
    """A paragraph in lines of the usual length; tables and everything that has lines already stay as they are."""
    if "\n" in section or section.startswith("!["):
        return section
    return textwrap.fill(section, COLUMNS, break_long_words=False, break_on_hyphens=False)


def pictures(drained: dict[str, Drained], killed: KillTest) -> dict[Path, str]:
    made: dict[Path, str] = {}
    if drained:
        made[SPEEDS] = charts.speeds([(NAMES[broker], _bars(found)) for broker, found in drained.items()])
    if killed.outcomes:
        rows = {broker: list(_fates(broker, killed)) for broker in BROKERS}
        most = max(row.starts for found in rows.values() for row in found)
        made[FATES] = charts.fates([(NAMES[broker], found) for broker, found in rows.items() if found], most)
    return made


def _bars(found: Drained) -> list[charts.Bar]:
    labels = {setup.name: setup.label for setup in known().drain} | {"raw": "loop by hand", "unpoison": OURS}
    kinds = {"raw": "loop", "unpoison": "ours"}
    return [
        charts.Bar(labels[side], tables.median_rate(cells), kinds.get(side, "theirs")) for side, cells in tables.in_order(found)
    ]


def _fates(broker: str, killed: KillTest) -> Iterator[charts.Fate]:
    """The worst run of each setup: whoever is on call meets that one."""
    for setup in known().kill:
        if setup.broker == broker and setup.name in killed.outcomes:
            worst = max(killed.outcomes[setup.name], key=words.badness)
            state = {"ended": _end(worst.places["poison"]), "silent": "stuck"}.get(worst.end, "not over")
            yield charts.Fate(setup.label, worst.poison_ran, state, tables.fates(worst), setup.peer == "unpoison")


def _end(place: str) -> str:
    """What to add to a count that is over; nothing where the poison is kept for a person."""
    return "given up" if place.startswith("given up") else "gone" if place == GONE else ""


def _kill_test(killed: KillTest) -> Iterator[str]:
    yield words.KILL_TEST
    if not killed.outcomes:
        yield "*Not tried yet. To fill this in: `make kill-test`.*"
        return
    yield f"![What became of the messages of the kill test, by library](images/{FATES.name})"
    yield words.kill_test_found(killed)
    for broker in BROKERS:
        setups = [setup for setup in known().kill if setup.broker == broker and setup.name in killed.outcomes]
        if setups:
            yield tables.killed(broker, killed.outcomes, setups)
    yield words.kill_test_footnote(killed)


def _speed(drained: dict[str, Drained]) -> Iterator[str]:
    yield words.SPEED
    if not drained:
        yield "*Not measured yet. To fill this in: `make bench-peers`.*"
        return
    yield f"![Messages per second, by library and broker](images/{SPEEDS.name})"
    for broker, found in drained.items():
        yield f"### {NAMES[broker]}"
        yield tables.drained(broker, found)
        yield words.speed_found(broker, found)
        yield words.speed_footnote(found)


def _growth(growth: Growth | None) -> Iterator[str]:
    yield words.GROWTH
    if growth is None:
        yield "*Not measured yet. To fill this in: `make bench-peers`.*"
        return
    yield tables.grown(growth.sizes)
    yield words.growth_found(growth)
    yield f"Measured on {growth.day}, once each. {growth.machine}."


def _settings() -> Iterator[str]:
    yield words.SETTINGS
    for peer in known().peer:
        setups = [setup for setup in known().drain if setup.peer == peer.name]
        tried = [setup for setup in known().kill if setup.peer == peer.name]
        version = workers.versions(peer.name).get(peer.package, "") if peer.name != "unpoison" else ""
        yield f"### {peer.title} {version}".strip()
        if peer.offers:
            yield f"Reasons to choose it: {peer.offers}."
        yield from (_setup(setup, f"measured with {setup.messages:,} messages") for setup in setups)
        yield from (_setup(setup, "in the kill test") for setup in tried)


def _setup(setup: Setup, use: str) -> str:
    variables = " ".join(f"{name}={value}" for name, value in setup.environment.items())
    lines = [f"{variables} {setup.worker}".strip(), "", *_lines(setup)]  # no prompt: it would be copied along
    told = _wrapped(f"**{setup.label} on {NAMES[setup.broker]}**, {use}. {setup.why}")
    return f"{told}\n\n```text\n" + "\n".join(lines) + "\n```"


def _lines(setup: Setup) -> Iterator[str]:
    for name, value in setup.settings.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner} = {json.dumps(given)}" for inner, given in value.items())
        else:
            yield f"{name} = {json.dumps(value)}"
