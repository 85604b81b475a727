"""The example of an adapter in the contract suite: what its tests there do not try."""

import threading

import pytest

from tests.contract.folder_adapter.broker import FolderBroker
from unpoison.errors import ConfigError
from unpoison.model.message import Outgoing


def test_after_an_open_that_failed_another_one_rings(tmp_path):
    broker, rung = FolderBroker(f"folder://{tmp_path}/queues"), threading.Event()
    with pytest.raises(ConfigError):
        broker.open(["orders"], create=False, ring=rung.set)
    broker.open(["orders"], ring=rung.set)
    try:
        broker.publish([Outgoing("1", "orders", b"")])
        assert rung.wait(20)
    finally:
        broker.close()
