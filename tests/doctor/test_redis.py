"""Each trap of a Redis server is made for real, found by its name, mended by the very commands of its fix, and gone."""

import shlex
import threading
from contextlib import contextmanager

import pytest

from tests.fault.redis.redis_parts import opened, raw
from tests.servers_plugin import private_or_skip
from unpoison.brokers import checks_for, findings_for
from unpoison.brokers.redis import doctor
from unpoison.errors import BrokerUnavailable
from unpoison.port.broker import Dead, Settlement
from unpoison.port.findings import MANY_DEAD
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.processes import Child, Gate


@pytest.fixture(scope="module")
def server():
    with private_or_skip("redis") as server:
        yield server


@pytest.fixture
def url(server):
    """A database with the source 'orders', in order."""
    url = server.fresh()
    with opened(url):
        pass
    return url


def found(url, *sources):
    return {finding.name: finding for finding in findings_for(url, sources)}


def mend(url, finding):
    """As a person would: everything after the sentence is copied into redis-cli."""
    with raw(url) as tool:
        for line in finding.fix.splitlines()[1:]:
            tool.execute_command(*shlex.split(line))


def test_a_server_in_order_has_no_finding_and_is_not_changed(url):
    with raw(url) as look:
        before = {key: look.dump(key) for key in look.scan_iter()}
        assert found(url) == {}
        assert found(url, "orders") == {}
        assert {key: look.dump(key) for key in look.scan_iter()} == before


SETTINGS = {
    "no-persistence": {"appendonly": "no", "save": ""},
    "snapshots-only": {"appendonly": "no", "save": "3600 1"},
    "appendfsync-no": {"appendfsync": "no"},
    "eviction": {"maxmemory-policy": "allkeys-lru"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_loses_messages_is_found_and_mended(url, name):
    with raw(url) as tool, kept(tool, "appendonly", "save", "appendfsync", "maxmemory-policy"):
        for setting, value in SETTINGS[name].items():
            tool.config_set(setting, value)
        (finding,) = findings_for(url)
        assert (finding.name, finding.loses) == (name, True)
        mend(url, finding)
        assert found(url) == {}


@contextmanager
def kept(tool, *names):
    """The settings as they were, afterwards."""
    before = {name: tool.config_get(name)[name] for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            tool.config_set(name, value)


def test_an_eviction_that_only_takes_keys_with_a_time_to_live_is_none_of_ours(url):
    with raw(url) as tool, kept(tool, "maxmemory-policy"):
        tool.config_set("maxmemory-policy", "volatile-lru")
        assert found(url) == {}


def test_a_memory_that_is_nearly_full_is_found_and_mended(url):
    with raw(url) as tool, kept(tool, "maxmemory"):
        tool.config_set("maxmemory", int(tool.info("memory")["used_memory"] * 1.05))
        finding = found(url)["memory-nearly-full"]
        assert not finding.loses
        mend(url, finding)
        assert found(url) == {}


def test_a_disk_that_cannot_be_written_is_found(private_server):
    server = private_server("redis")
    url, folder = server.fresh(), server.folder / "data"
    with raw(url) as tool:
        before = folder.stat().st_mode
        folder.chmod(0o500)
        save(tool)
        finding = found(url)["file-not-written"]
        folder.chmod(before)
        mend(url, finding)
        wait_until(lambda: found(url) == {}, lambda: f"Still found: {found(url)}")


def save(tool):
    """A server that is writing a file refuses to begin another one."""
    wait_until(lambda: not is_writing(tool), lambda: "The file before it does not end")
    tool.bgsave()
    wait_until(lambda: not is_writing(tool), lambda: "It does not end")


def is_writing(tool):
    told = tool.info("persistence")
    return any(told[name] for name in ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled"))


def test_a_replica_is_found_and_its_master_named(private_server):
    master, replica = private_server("redis"), private_server("redis")
    with raw(replica.url) as tool:
        tool.execute_command("REPLICAOF", "127.0.0.1", master.port)
        assert f"127.0.0.1:{master.port}" in found(replica.url)["read-only-replica"].fix
        tool.execute_command("REPLICAOF", "NO", "ONE")
        assert found(replica.url) == {}


def test_a_user_who_may_not_subscribe_is_found_and_mended(url):
    with raw(url) as tool:
        tool.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">secret", "~*", "+@all", "resetchannels")
    poor = url.replace("//", "//poor:secret@")
    finding = found(poor)["cannot-subscribe"]
    mend(url, finding)
    assert found(poor) == {}


def test_what_a_user_may_not_see_is_said_and_the_rest_is_looked_at(url):
    with raw(url) as tool:
        tool.execute_command("ACL", "SETUSER", "blind", "reset", "on", ">secret", "~*", "&*", "+@all", "-config", "-info")
        tool.expire("orders", 1000)
    blind = url.replace("//", "//blind:secret@")
    assert {"cannot-look", "key-expires"} == found(blind).keys()
    for finding in findings_for(blind):
        mend(url, finding)
    assert found(url.replace("//", "//blind:secret@")) == {}


def test_a_key_that_expires_is_found_and_mended(url):
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 1))
        tool.expire("orders", 1000)
    finding = found(url)["key-expires"]
    assert finding.loses
    mend(url, finding)
    assert found(url) == {}


def test_a_stream_that_was_trimmed_before_it_was_read_is_found(url):
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 10))
        broker.settle(Settlement(gone=broker.fetch("orders", 2)))
        tool.xtrim("orders", maxlen=3, approximate=False)
        finding = found(url)["stream-trimmed"]
        assert finding.loses
        assert "5 unread" in finding.problem


def test_a_stream_that_was_trimmed_under_a_consumer_is_found_and_gone_when_that_has_ended(url):
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 10))
        held = broker.fetch("orders", 10)
        tool.xadd("orders", {"body": "x"}, maxlen=5, approximate=False)
        assert "6 that consumers hold" in found(url)["stream-trimmed"].problem
        broker.settle(Settlement(gone=held))
        assert found(url) == {}


def test_messages_that_are_merely_consumed_are_not_taken_for_trimmed(url):
    with opened(url) as broker:
        broker.publish(given.messages("orders", 10))
        broker.settle(Settlement(gone=broker.fetch("orders", 4)))
        broker.fetch("orders", 2)
        assert found(url) == {}


def test_a_stream_that_grows_for_other_groups_is_found_and_what_may_be_cut_off_is_named(url, monkeypatch):
    monkeypatch.setattr(doctor, "GROWN", 5)
    with opened(url) as ours, opened(f"{url}?group=billing") as others, raw(url) as look:
        ours.publish(given.messages("orders", 10))
        ours.settle(Settlement(gone=ours.fetch("orders", 10)))
        read = others.fetch("orders", 7)
        others.settle(Settlement(gone=read[:4] + read[5:]))
        mend(url, found(url)["other-groups"])
        assert [fields[b"body"] for _, fields in look.xrange("orders")] == [b"4", b"5", b"6", b"7", b"8", b"9"]
        others.settle(Settlement(gone=read[4:5]))
        mend(url, found(url)["other-groups"])
        assert [fields[b"body"] for _, fields in look.xrange("orders")] == [b"7", b"8", b"9"]
        assert len(others.fetch("orders", 10)) == 3


def test_what_is_in_the_way_is_found_and_mended(server):
    url = server.fresh()
    with raw(url) as tool:
        tool.lpush("dlq:orders", "x")
        finding = found(url, "orders")["wrong-type"]
        mend(url, finding)
        tool.set("orders", "x")
        mend(url, found(url, "orders")["wrong-type"])
        assert "wrong-type" not in found(url, "orders")
        tool.lpush("orders", "x")
        assert "?list=orders" in found(url, "orders")["wrong-type"].fix
        assert found(f"{url}?list=orders", "orders").keys() == {"list-source"}


def test_a_source_that_nobody_uses_is_found(url):
    assert "'orders'" in found(url, "order")["source-missing"].problem


def test_a_consumer_that_vanished_with_messages_is_found_and_gone_once_another_runs(url):
    holding = Gate("holding")

    def hold() -> None:
        with opened(url) as broker:
            broker.publish(given.messages("orders", 3))
            broker.fetch("orders", 3)
            holding.open()
            threading.Event().wait()

    with Child(hold) as child:
        holding.wait()
        assert found(url) == {}
        child.kill()
    wait_until(lambda: "vanished-consumer" in found(url), lambda: "It is not found")
    assert "held 3 messages" in found(url)["vanished-consumer"].problem
    with opened(url) as broker:
        broker.settle(Settlement(gone=broker.fetch("orders", 10)))
    assert found(url) == {}


def test_many_dead_letters_are_found(url):
    with opened(url) as broker:
        broker.publish(given.messages("orders", MANY_DEAD + 1))
        held = broker.fetch("orders", MANY_DEAD + 1)
        broker.settle(Settlement(dead=[Dead(delivery, given.letter_of(delivery)) for delivery in held[:-1]]))
        assert found(url) == {}
        broker.settle(Settlement(dead=[Dead(held[-1], given.letter_of(held[-1]))]))
    assert f"{MANY_DEAD + 1} dead letters" in found(url)["many-dead-letters"].problem


def test_a_server_that_is_not_there_is_said():
    with pytest.raises(BrokerUnavailable, match="Check that the server runs"):
        findings_for("redis://127.0.0.1:1/0")


def test_the_names_of_all_findings_are_known(url):
    known = set(checks_for(url))
    assert known >= {*SETTINGS, "stream-trimmed", "key-expires", "wrong-type", "other-groups", "list-source", "vanished-consumer"}
