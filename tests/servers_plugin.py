"""Which servers does a test get, and what happens when there are none?

`postgresql`, `pgbouncer`, `rabbitmq`, `rabbitmq_4`, `redis`, `redis_8`: one for the whole run, shared by all workers of xdist and
never to be killed; its `fresh()` gives a place with nothing in it. `private_server("rabbitmq")`: one for this test alone, to be
killed and started. `private_or_skip` in a fixture of a module: one for these tests, which each of them leaves as it was.

A test that leaves a server changed (a setting, a process that stands still) fails, by its own name. A server of a module is then
restored, so that no other test fails with it; one that the whole run shares cannot be, others are using it.

A server that cannot be had: its tests are skipped with one loud line at the end, and with CI=true they fail.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

import pytest

import servers
from servers import Owner, Server, ServerMissing
from servers.processes import Process

# Taken out of the environment: an App warns of settings named UNPOISON_… that it does not know.
ADDRESSES = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("UNPOISON_TEST_")}


def fixture_of(server: str) -> str:
    """The name of the fixture that gives this server."""
    return server.replace("-", "_").replace(".", "_")


FIXTURES = {fixture_of(name): name for name in servers.ENTRIES}
LOUD = "SERVER MISSING"
OWNER = pytest.StashKey[Owner]()
_missing: dict[str, str] = {}
_private: list[Server] = []
"""Those that run now and belong to one test, or to one module."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "servers(*names): installs these servers before the first test, not within its time limit")
    told = getattr(config, "workerinput", {}).get("servers")
    if told:
        ADDRESSES.update(told["addresses"])
    config.stash[OWNER] = Owner.of(Process(*told["owner"]) if told else Process.own())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """In the process that starts xdist's workers, which outlives them all: it owns what they share."""
    process = node.config.stash[OWNER].process
    node.workerinput["servers"] = {"owner": [process.pid, process.started], "addresses": ADDRESSES}


def pytest_runtestloop(session: pytest.Session) -> None:
    """Installing a server may take longer than a test may."""
    wanted = {FIXTURES[name] for item in session.items for name in getattr(item, "fixturenames", ()) if name in FIXTURES}
    wanted |= {name for item in session.items for mark in item.iter_markers("servers") for name in mark.args}
    for name in sorted(wanted):
        if servers.entry(name).variable not in ADDRESSES:
            _note_if_missing(name, lambda name=name: servers.get(name))


def pytest_unconfigure(config: pytest.Config) -> None:
    # Neither a worker nor a run that has failed before it began owns anything.
    owner = config.stash.get(OWNER, None)
    if owner and not hasattr(config, "workerinput") and owner.folder.exists():
        servers.stop_all(owner)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Once for each server, however many tests were skipped for want of it."""
    reports = [each for kind in ("skipped", "failed", "error") for each in terminalreporter.stats.get(kind, ())]
    texts = [str(each.longrepr[2]) if isinstance(each.longrepr, tuple) else str(each.longrepr) for each in reports]
    for line in loud_lines(texts):
        terminalreporter.line(line, red=True, bold=True)


def loud_lines(texts: list[str]) -> list[str]:
    """The lines about missing servers in the results of all tests, each with the number of tests that it has cost."""
    found = [text[text.index(LOUD) :].splitlines()[0] for text in texts if LOUD in text]
    return [f"{line} ({found.count(line)} tests did not run)" for line in sorted(set(found))]


def shared_or_skip(name: str, owner: Owner) -> Server:
    if name in _missing:
        _do_without(name)
    return _note_if_missing(name, lambda: servers.shared(name, owner, ADDRESSES)) or _do_without(name)


@contextmanager
def private_or_skip(name: str, **options) -> Iterator[Server]:
    """One for the block alone. For a fixture of wider scope than a test; a test takes `private_server`."""
    if name in _missing:
        _do_without(name)
    with ExitStack() as stack:
        server = _note_if_missing(name, lambda: stack.enter_context(servers.private(name, **options))) or _do_without(name)
        _private.append(server)
        stack.callback(_private.remove, server)
        yield server


@pytest.fixture(autouse=True)
def _servers_are_left_as_they_were(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up before all other fixtures of the test, so that only servers which outlive it are still there when this looks."""
    yield
    shared = [request.getfixturevalue(name) for name in FIXTURES if name in request.fixturenames]
    changed = [f"{server.entry.name}: {changes}" for server in [*_private, *shared] if (changes := _put_right(server, shared))]
    if changed:
        pytest.fail(
            f"The test left a server changed that others use: {'; '.join(changed)}. Take one with private_server, or put it back "
            f"whatever happens.",
            pytrace=False,
        )


def _put_right(server: Server, shared: list[Server]) -> dict[str, str]:
    changes = server.changes()
    if changes and server in shared:
        server.accept()  # named once, not again for every test that follows
    elif changes:
        server.restore()
    return changes


def _note_if_missing(name: str, get: Callable[[], Server | None]) -> Server | None:
    try:
        return get()
    except ServerMissing as error:
        _missing[name] = str(error)
        return None


def skip_or_fail(name: str, error: ServerMissing) -> NoReturn:
    """For a test that starts servers in a way of its own: a missing one counts as it does everywhere."""
    _missing[name] = str(error)
    _do_without(name)


def _do_without(name: str) -> NoReturn:
    line = f"{LOUD}: {name}: {_missing[name]}"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{line} With CI=true that is a failure.", pytrace=False)
    pytest.skip(line)


@pytest.fixture
def private_server() -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:
        yield lambda name, **options: stack.enter_context(private_or_skip(name, **options))


def _shared_with_all(name: str) -> Callable[[pytest.Config], Server]:
    @pytest.fixture(scope="session", name=fixture_of(name))
    def server(pytestconfig: pytest.Config) -> Server:
        return shared_or_skip(name, pytestconfig.stash[OWNER])

    return server


# A fixture for each server there is: postgresql, rabbitmq_4, nats_2_9 …
globals().update({f"_{fixture}": _shared_with_all(name) for fixture, name in FIXTURES.items()})
