"""The start of a suspect is on the disk before its handler runs, or a message that takes the machine down leaves no trace."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from tests.contract.labs import SQLiteLab
from tests.unit.sqlite_files import opened
from unpoison.model.message import Counters
from unpoison.port.broker import Kept, Settlement
from unpoison.testing import given
from unpoison.testing.isolation.scene import Scene


@pytest.fixture
def lab(tmp_path):
    with SQLiteLab(tmp_path) as lab:
        yield lab


def test_taking_a_suspect_is_synced(tmp_path):
    broker = opened(tmp_path / "shop.db", "orders")
    broker.publish(given.messages("orders", 1))
    (delivery,) = broker.fetch("orders", 1)
    broker.settle(Settlement(kept=[Kept(delivery, Counters(vanished=2, alone=True))]))
    broker.fetch("orders", 1)  # an ordinary step, after which the connection does not sync any more
    statements = []
    broker._connection.set_trace_callback(lambda text: statements.append(text.lower().replace(" ", "")))
    assert broker.take_suspect("orders", "host:1") is not None
    levels = [
        text.partition("=")[2] for text in statements[: statements.index("commit")] if text.startswith("pragmasynchronous=")
    ]
    assert levels[-1:] == ["full"]
    broker.close()


def test_the_start_of_a_suspect_is_in_the_file_before_its_handler_does_anything(lab):
    with Scene(lab, max_attempts=5) as scene:
        scene.publish({"suspect": {"do": "copy", "how": ["broker.db", "broker.db-wal"]}})
        scene.vanish()
        scene.vanish()
        consumer = scene.drained()
        assert scene.diary.done() == {"suspect": 1}
        with closing(sqlite3.connect(lab.folder / "copy" / "broker.db")) as copy:
            (text,) = copy.execute("select counters from unpoison_waiting where id = 'suspect'").fetchone()
        counters = msgspec.json.decode(text, type=Counters)
        assert (counters.vanished, counters.losses, counters.alone) == (2, 1, True)
        assert f":{consumer.pid} and never ended" in counters.history[-1].error
