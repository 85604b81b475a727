"""The suite itself: every promise is gathered, and authors of other adapters can use it."""

import importlib
import pkgutil
import subprocess
import sys

from tests.contract import test_promises as tried
from unpoison.testing import contract
from unpoison.testing.contract import killing

THIRD_PARTY = """
from contextlib import nullcontext

import pytest
from unpoison.brokers import ADAPTERS, Adapter
from unpoison.testing import Lab
from unpoison.testing.contract import *

ADAPTERS["pigeon"] = Adapter("unpoison.brokers.memory", "MemoryBroker", "unpoison.brokers.memory", "MemoryDeadLetters")


class PigeonLab(Lab):
    def steal(self, broker, deliveries):
        broker.close()

    def dead_letters_unwritable(self):
        return nullcontext()


@pytest.fixture
def lab(tmp_path):
    with PigeonLab(f"pigeon://{tmp_path.name}", tmp_path) as lab:
        yield lab
"""


def test_every_promise_of_every_topic_is_gathered_under_a_name_of_its_own():
    topics = [importlib.import_module(f"{contract.__name__}.{module.name}") for module in pkgutil.iter_modules(contract.__path__)]
    gathered = [topic for topic in topics if not topic.__name__.rpartition(".")[2].startswith("isolation_")]
    names = [name for topic in gathered for name in vars(topic) if name.startswith("test_")]
    assert sorted(names) == sorted(contract.PROMISES) == sorted(contract.__all__)


def test_the_quick_promises_and_the_kills_at_every_line_are_all_there_are():
    kills = [name for name in vars(killing) if name.startswith("test_")]
    quick = [name for name in vars(tried) if name.startswith("test_")]
    assert sorted([*quick, *kills]) == sorted(contract.PROMISES)


def test_a_third_party_can_prove_its_adapter(tmp_path):
    (tmp_path / "test_pigeon.py").write_text(THIRD_PARTY)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "stale_owner_cannot or adds_up or killed_at"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "8 passed, 9 skipped" in result.stdout


def test_an_adapter_that_breaks_a_promise_is_found_out(tmp_path):
    forgetful = THIRD_PARTY.replace("broker.close()", "pass")
    (tmp_path / "test_pigeon.py").write_text(forgetful)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "stale_owner_cannot_settle"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "DID NOT RAISE" in result.stdout
