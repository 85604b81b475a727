"""The suite about isolated workers itself: every promise is gathered, and authors of other adapters can use it."""

import os
import subprocess
import sys

from unpoison.testing.isolation import promises

ADAPTER = """
from unpoison.brokers.sqlite.broker import SQLiteBroker
from unpoison.brokers.sqlite.deadletters import SQLiteDeadLetters


class PigeonBroker(SQLiteBroker):
    def __init__(self, url):
        super().__init__(url.replace("pigeon:", "sqlite:"))


class PigeonLetters(SQLiteDeadLetters):
    pass
"""

THIRD_PARTY = """
from contextlib import nullcontext

import pytest
from unpoison.brokers import ADAPTERS, Adapter
from unpoison.testing import Lab
from unpoison.testing.isolation.promises import *

ADAPTERS["pigeon"] = Adapter("pigeon", "PigeonBroker", "pigeon", "PigeonLetters")


class PigeonLab(Lab):
    def steal(self, broker, deliveries):
        raise NotImplementedError

    def dead_letters_unwritable(self):
        return nullcontext()


@pytest.fixture
def lab(tmp_path):
    with PigeonLab(f"pigeon:///{tmp_path}/loft.db", tmp_path) as lab:
        yield lab
"""


def test_no_promise_about_isolation_hides_another_of_the_same_name():
    names = [name for topic in promises.TOPICS for name in vars(topic) if name.startswith("test_")]
    assert sorted(names) == sorted(promises.PROMISES) == sorted(promises.__all__)
    assert len(names) > 50


def test_a_third_party_can_prove_that_isolated_workers_keep_their_promises_on_its_broker(tmp_path):
    (tmp_path / "pigeon.py").write_text(ADAPTER)
    (tmp_path / "test_pigeon.py").write_text(THIRD_PARTY)
    chosen = "kills_every_process or (charged_alone and segmentation)"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen]
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout
