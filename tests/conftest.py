"""What holds for every test."""

import os
import signal

import pytest
from hypothesis import settings

from tests.architecture import report

pytest_plugins = ["tests.servers_plugin", "tests.shards"]

# Settings of the person who runs the tests must not change what the tests see. Addresses of servers the plugin takes.
for name in [name for name in os.environ if name.startswith("UNPOISON_") and not name.startswith("UNPOISON_TEST_")]:
    del os.environ[name]

# Where a shell started us in the background it has told us, and so all that we start, to ignore Ctrl+C. Some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Steady: the same examples in every run, and no failure because a machine was busy. To look for new ones:
# pytest --hypothesis-profile=search
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2_000, deadline=None)
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", action="store_true", help="print which promises are tried on which brokers, and run nothing")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not config.getoption("--matrix"):
        return None
    from tests.contract import matrix  # noqa: PLC0415 - loads the clients of all brokers

    print("\n".join(matrix.table()))
    return 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After the architecture tests: how long things have become. Runs where the results are shown, with xdist too."""
    ran = (each for reports in terminalreporter.stats.values() for each in reports)
    if any(getattr(each, "nodeid", "").startswith("tests/architecture/") for each in ran):
        terminalreporter.section("architecture")
        for line in report.lines():
            terminalreporter.line(line)
