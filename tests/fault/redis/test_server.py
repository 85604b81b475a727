"""What if Redis is restarted, killed, full, cut off, failed over? Nothing that it has on its disk is lost, and nothing spins."""

import subprocess
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis as client

from servers.ports import free_port
from tests.fault.certificates import make_certificate
from tests.fault.redis.redis_parts import bodies, opened, raw
from tests.fault.scenes import consumed_through_a_restart
from tests.servers_plugin import private_or_skip
from unpoison import App
from unpoison.brokers.redis import owner
from unpoison.brokers.redis.broker import RedisBroker
from unpoison.errors import BrokerUnavailable, ConfigError, OwnershipLost
from unpoison.model.backoff import Backoff
from unpoison.model.message import Counters, Delivery, Outgoing
from unpoison.port.broker import Dead, Depth, Kept, Settlement
from unpoison.port.broker_url import masked
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, drained


@pytest.fixture(scope="module")
def server():
    # With everysec a kill can cost what was confirmed while the disk was busy: docs/redis.md.
    with private_or_skip("redis", settings={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def url(server):
    return server.fresh()


STOPS = {"restart": lambda server: server.stop(), "kill -9": lambda server: server.kill_hard()}


@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
def test_a_consumer_outlives_its_server_and_no_message_is_lost(url, server, stop):
    def restart():
        stop(server)
        server.start()

    app = App(url, prefetch=16)
    done = consumed_through_a_restart(app, restart, delay=1)
    assert max(Counter(done).values()) == 1
    assert app.dlq("orders").count() == 0
    app.close()


def test_everything_confirmed_survives_a_kill_of_the_server(url, server):
    with opened(url) as broker:
        broker.publish([*given.messages("orders", 5), *given.messages("orders", 1, first=9, delay=3600)])
        first, second, third = broker.fetch("orders", 3)
        broker.settle(Settlement([first], [Kept(second, Counters(attempts=2))], [Dead(third, given.letter_of(third))]))
    server.kill_hard()
    server.start()
    with opened(url) as broker:
        assert broker.depth("orders") == Depth(ready=3, delayed=1, dead=1)
        found = {delivery.body: delivery.counters.attempts for delivery in broker.fetch("orders", 10)}
        assert found == {b"1": 2, b"3": 0, b"4": 0}


def test_a_server_that_was_killed_takes_nothing_from_consumers_that_live(url, server):
    with opened(url) as owner, opened(url) as other:
        owner.publish(given.messages("orders", 3))
        held = owner.fetch("orders", 3)
        server.kill_hard()
        server.start()
        wait_until(lambda: answered(other, []), lambda: "It does not come back")
        assert list(other.fetch("orders", 10)) == []
        wait_until(lambda: answered(owner, []), lambda: "It does not come back")
        owner.settle(Settlement(gone=held))
        assert other.depth("orders") == Depth()


def test_a_cut_connection_costs_nothing_if_nobody_looked_meanwhile(url):
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 3))
        held = broker.fetch("orders", 3)
        before = tool.hgetall("unpoison:orders:unpoison:owners")
        tool.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        subscribed = f"unpoison:owner:{broker._owner('orders').name}"
        wait_until(lambda: tool.pubsub_numsub(subscribed)[0][1] == 1, lambda: "It is not subscribed again")
        tool.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(BrokerUnavailable):
            broker.settle(Settlement(gone=held))
        broker.settle(Settlement(gone=held))
        assert broker.depth("orders") == Depth()
        assert tool.hgetall("unpoison:orders:unpoison:owners").keys() == before.keys()


def test_messages_in_an_answer_that_never_came_are_handed_out_again_uncounted(url):
    with opened(f"{url}?socket_timeout=0.3") as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 6))
        first, second = broker.fetch("orders", 2)
        broker.settle(Settlement(kept=[Kept(second, Counters(attempts=1))]))
        broker.publish(given.messages("orders", 1, first=9))
        with busy(tool), pytest.raises(BrokerUnavailable, match="Timeout"):
            broker.fetch("orders", 10)
        wait_until(
            lambda: tool.xpending("orders", "unpoison")["pending"] > 1 or tool.hlen("unpoison:orders:unpoison:held"), lambda: "No"
        )
        found = broker.fetch("orders", 10)
        assert sorted((delivery.body, delivery.counters) for delivery in found) == [
            (b"1", Counters(attempts=1)),
            *((body, Counters()) for body in (b"2", b"3", b"4", b"5", b"9")),
        ]
        broker.settle(Settlement(gone=[first, *found]))
        assert broker.depth("orders") == Depth()


def test_a_list_message_in_an_answer_that_never_came_is_handed_out_again(url):
    with opened(f"{url}?socket_timeout=0.3&list=orders") as broker, raw(url) as tool:
        tool.lpush("orders", "a", "b")
        (first,) = broker.fetch("orders", 1)
        with busy(tool), pytest.raises(BrokerUnavailable, match="Timeout"):
            broker.fetch("orders", 10)
        wait_until(lambda: tool.hlen("unpoison:orders:unpoison:held") == 2, lambda: "It was not handed out")
        (second,) = broker.fetch("orders", 10)
        assert (first.body, second.body, second.counters) == (b"a", b"b", Counters())
        broker.settle(Settlement(gone=[first, second]))
        assert broker.depth("orders") == Depth()


@contextmanager
def busy(tool):
    """A server that does something else for longer than anybody waits, and then does what it was asked all the same."""
    clock = "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end"
    script = f"{clock} local begun = now() repeat until now() > begun + 1500"
    thread = threading.Thread(target=tool.eval, args=(script, 0))
    thread.start()
    with client.Redis(port=tool.get_connection_kwargs()["port"], socket_timeout=0.05, retry=None) as other:
        wait_until(lambda: not pings(other), lambda: "The server is not busy")
    yield
    thread.join()


def pings(other):
    try:
        return other.ping()
    except client.TimeoutError:
        return False


def test_a_consumer_that_was_silent_for_too_long_is_fenced(url, monkeypatch):
    monkeypatch.setattr(owner, "LEASE", 0.2)
    with opened(url) as silent, opened(url) as other:
        silent.publish(given.messages("orders", 2))
        held = silent.fetch("orders", 10)
        stop_beating(silent)
        back = []
        wait_until(lambda: back.extend(other.fetch("orders", 10)) or back, lambda: "Nobody took over")
        assert sorted(bodies(back)) == [b"0", b"1"]
        for settlement in (Settlement(gone=held), Settlement(kept=[Kept(held[0], Counters(attempts=1))])):
            with pytest.raises(OwnershipLost):
                silent.settle(settlement)
        with pytest.raises(OwnershipLost):
            silent.extend(held)
        assert other.depth("orders") == Depth(leased=2)


def stop_beating(broker):
    """As a process that was stopped: its connections are open, and it says nothing."""
    one = broker._owner("orders")
    one._closed.set()
    one._wake()
    one._thread.join()


RIGHTS = ["resetchannels", "-info", "-@pubsub"]


@pytest.mark.parametrize("missing", RIGHTS)
def test_a_user_without_some_rights_is_served_and_its_consumers_are_noticed_by_their_silence(url, missing, monkeypatch):
    monkeypatch.setattr(owner, "LEASE", 0.5)
    with raw(url) as tool:
        tool.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">secret", "&*", "~*", "+@all", missing)
    poor = url.replace("//", "//poor:secret@")
    with opened(poor) as silent, opened(poor) as other:
        silent.publish(given.messages("orders", 2))
        held = silent.fetch("orders", 10)
        assert list(other.fetch("orders", 10)) == []
        silent.settle(Settlement(gone=held[:1]))
        stop_beating(silent)
        back = []
        wait_until(lambda: back.extend(other.fetch("orders", 10)) or back, lambda: "Nobody took over")
        assert bodies(back) == [b"1"]


def test_the_rights_that_the_page_lists_are_enough(url):
    page = (Path(__file__).parents[3] / "docs" / "redis.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER shop")]
    with raw(url) as tool:
        rights = [right for right in line.split()[3:] if right != "+waitaof"]  # a command that this server does not have yet
        tool.execute_command("ACL", "SETUSER", "shop", "reset", *rights)
        tool.execute_command("ACL", "LOG", "RESET")
    seen: list[int] = []

    def handle(number: int, delivery: Delivery) -> None:
        seen.append(number)
        if number == 1 and len(seen) < 6:
            raise ConnectionError("not now")

    app = given.consumer(App(url.replace("//", "//shop:secret@")), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    app.publish_many("orders", range(3))
    app.publish("orders", 3, delay=0.1)
    drained(app)
    app.dlq("orders").replay_all()
    drained(app)
    app.dlq("orders").purge()
    app.close()
    assert sorted(seen) == [0, 1, 1, 1, 2, 3]
    with raw(url) as tool:
        assert tool.execute_command("ACL", "LOG") == []


def test_a_batch_for_which_there_is_not_enough_room_is_not_stored_at_all(private_server):
    server = private_server("redis", settings={"maxmemory-policy": "noeviction"})
    url = server.fresh()
    with opened(url) as broker, raw(url) as tool:
        tool.config_set("maxmemory", tool.info("memory")["used_memory"] + 5_000_000)
        large = [Outgoing(str(n), "orders", b"x" * 100_000) for n in range(200)]
        with pytest.raises(BrokerUnavailable, match="maxmemory"):
            given.publish(broker, large)
        assert broker.depth("orders") == Depth()
        broker.publish(large[:10])
        assert broker.depth("orders") == Depth(ready=10)


def test_a_full_server_stores_nothing_more_says_so_and_lets_finished_ones_go(private_server):
    server = private_server("redis", settings={"maxmemory-policy": "noeviction"})
    url = server.fresh()
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 3))
        held = broker.fetch("orders", 3)
        tool.config_set("maxmemory", "1mb")
        for refused in (
            lambda: given.publish(broker, given.messages("orders", 2)),
            lambda: given.publish(broker, given.messages("orders", 1)),
            lambda: broker.settle(Settlement(dead=[Dead(held[0], given.letter_of(held[0]))])),
            lambda: broker.settle(Settlement(kept=[Kept(held[0], Counters(attempts=1))])),
        ):
            with pytest.raises(BrokerUnavailable, match="maxmemory"):
                refused()
        broker.settle(Settlement(gone=held[2:]))
        tool.config_set("maxmemory", "0")
        broker.settle(Settlement(kept=[Kept(held[0], Counters(attempts=1))], dead=[Dead(held[1], given.letter_of(held[1]))]))
        assert broker.depth("orders") == Depth(ready=1, dead=1)


@pytest.mark.long
def test_the_start_of_a_suspect_is_on_disk_before_it_runs_where_the_server_can_say_so(redis_8):
    url = redis_8.fresh()
    with opened(url) as broker, raw(url) as look:
        broker.publish(given.messages("orders", 1))
        (held,) = broker.fetch("orders", 1)
        broker.settle(Settlement(kept=[Kept(held, Counters(vanished=2, alone=True))]))
        assert broker.has_suspect("orders")
        before = waits(look)
        suspect = broker.take_suspect("orders", "here")
        assert suspect.counters.losses == 0
        (text,) = look.hvals("unpoison:orders:unpoison:counters")
        assert b'"losses":1' in text
        assert waits(look) > before


def waits(look):
    """How often this server was asked to wait for its disk, by anybody."""
    return look.info("commandstats").get("cmdstat_waitaof", {"calls": 0})["calls"]


def test_scripts_that_the_server_has_forgotten_are_loaded_again(url):
    with opened(url) as broker, raw(url) as tool:
        broker.publish(given.messages("orders", 2))
        tool.script_flush()
        held = broker.fetch("orders", 10)
        assert len(held) == 2
        tool.script_flush()
        broker.settle(Settlement(gone=held))
        assert broker.depth("orders") == Depth()


def test_the_server_is_said_to_be_away_with_the_address_and_without_the_password():
    with pytest.raises(BrokerUnavailable, match="Check that the server runs") as raised:
        RedisBroker("redis://shop:secret@127.0.0.1:1/0").open(["orders"])
    assert "shop:***@127.0.0.1:1" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_no_password_in_a_url_is_shown():
    url = "rediss+sentinel://shop:one@127.0.0.1:1/master?sentinel_password=two&ssl_password=three&group=g"
    with pytest.raises(BrokerUnavailable) as raised:
        RedisBroker(url).open(["orders"])
    for shown in (str(raised.value), masked(url)):
        assert "sentinel_password=***&ssl_password=***&group=g" in shown
        assert not any(secret in shown for secret in (":one@", "=two", "=three"))


URLS = {
    "redis://h/zero": "number of a database",
    "redis://h?colour=red": "colour",
    "redis://h?group=a:b": "group must be",
    "redis://h?group=dlq": "group must be",
    "redis+sentinel://h:26379": "does not name the master",
    "redis://h:port/0": "no number where its port should be",
}


@pytest.mark.parametrize(("url", "said"), URLS.items(), ids=URLS)
def test_a_url_that_cannot_work_is_refused_with_an_example(url, said):
    with pytest.raises(ConfigError, match=said):
        RedisBroker(url)


def test_tls_urls_pass_through(private_server):
    server = private_server("redis")
    certificate, key = make_certificate(server.folder)
    server.hand_over(key)
    port = free_port(set())
    server.stop()
    files = {"tls-cert-file": str(certificate), "tls-key-file": str(key)}
    server.start({"tls-port": str(port), **files, "tls-auth-clients": "no"})
    consumed_over(f"rediss://localhost:{port}/3?ssl_ca_certs={certificate}")
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
        RedisBroker(f"rediss://localhost:{port}/3").open(["orders"])


@pytest.mark.long
@pytest.mark.servers("redis")
def test_sentinels_are_asked_who_is_master_also_after_a_failover(private_server, tmp_path):
    master, replica = private_server("redis"), private_server("redis")
    port = free_port(set())
    with raw(replica.url) as tool:
        tool.execute_command("REPLICAOF", "127.0.0.1", master.port)
        wait_until(lambda: tool.info("replication")["master_link_status"] == "up", lambda: "The replica does not follow")
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor shop 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 5000\n"
    )
    with subprocess.Popen(["redis-server", str(config), "--sentinel"], stdout=subprocess.DEVNULL) as sentinel:
        try:
            url = f"redis+sentinel://127.0.0.1:{port}/shop/0"
            with client.Redis(port=port) as look:
                wait_until(lambda: knows_replica(look), lambda: "The sentinel does not know the replica")
            with opened(url) as broker:
                broker.publish(given.messages("orders", 3))
                with raw(master.url) as tool:
                    tool.execute_command("WAIT", 1, 5000)
                held = broker.fetch("orders", 1)
                master.kill_hard()
                depth = []
                wait_until(lambda: answered(broker, depth), lambda: "The new master was not found")
                assert depth[-1] == Depth(ready=2, leased=1)
                broker.settle(Settlement(gone=held))
        finally:
            sentinel.terminate()


def knows_replica(look):
    try:
        return look.sentinel_slaves("shop")
    except client.RedisError:
        return False


def answered(broker, found):
    try:
        found.append(broker.depth("orders"))
        broker.publish(given.messages("others", 1))
    except BrokerUnavailable:
        return False
    return True


def consumed_over(url):
    seen = []
    app = given.consumer(App(url), "orders", seen.append, schema=int)
    app.publish_many("orders", range(3))
    with Journal() as journal:
        drained(app)
    assert (seen, journal.errors()) == ([0, 1, 2], [])
    app.close()
