"""Each trap of a RabbitMQ server is made for real, found by its name, mended by the very commands of its fix, and gone."""

import shlex
import shutil

import pytest

from tests.doctor.rabbitmq_vhost import OLD, VirtualHost, until
from tests.servers_plugin import private_or_skip
from unpoison.brokers import findings_for
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker
from unpoison.brokers.rabbitmq.deadletters import RabbitMQDeadLetters
from unpoison.brokers.rabbitmq.doctor import queue_facts
from unpoison.brokers.rabbitmq.doctor import server as server_checks
from unpoison.decide.options import ConsumerOptions
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.message import Outgoing
from unpoison.port.findings import MANY_DEAD


def test_a_virtual_host_in_order_has_no_findings(vhost, vhost_4):
    vhost.run_once(level=6)
    assert vhost.found("orders") == vhost.found() == {}
    assert vhost_4.found("orders") == vhost_4.found() == {}


def test_looking_changes_nothing(vhost):
    before = vhost.http("GET", "definitions/{vhost}")
    vhost.found("orders", "ordres")
    assert vhost.http("GET", "definitions/{vhost}") == before


def test_a_server_that_does_not_answer_is_said_to_be_unavailable(empty):
    with pytest.raises(BrokerUnavailable, match="does not answer"):
        empty.found(url="amqp://shop:secret@127.0.0.1:1/shop")
    with pytest.raises(ConfigError, match="cannot be a RabbitMQ queue"):
        empty.found("amq.orders")


def test_source_missing(vhost):
    assert "there are: 'orders'." in vhost.found("ordres")["source-missing"].problem
    assert "no queue 'ordres'" in vhost.found("ordres", url=vhost.bare)["source-missing"].problem
    vhost.run_once("ordres")
    assert vhost.found("ordres") == {}


def test_many_dead_letters(vhost):
    with vhost.channel() as channel:
        channel.confirm_delivery()
        for number in range(MANY_DEAD + 1):
            channel.basic_publish("", "orders.dlq", b"%d" % number)
        assert vhost.found()["many-dead-letters"].problem.startswith("101 dead letters of 'orders'")
        channel.basic_get("orders.dlq", auto_ack=True)
        assert vhost.found() == {}


def test_heartbeat_off(vhost):
    assert set(vhost.found(url=f"{vhost.url}&heartbeat=0")) == {"heartbeat-off"}
    assert vhost.found(url=f"{vhost.url}&heartbeat=5") == {}


def test_old_servers(vhost, vhost_4, monkeypatch):
    assert [finding.name for finding in findings_for(vhost.url)] == [OLD]
    monkeypatch.setattr(server_checks, "OLDEST", (3, 11))
    assert vhost.found()["server-too-old"].loses
    assert findings_for(vhost_4.url) == []


def rights(vhost, user, pattern, tags=""):
    """The virtual host as this user sees it."""
    vhost.server.http("PUT", f"/api/users/{user}", {"password": "secret", "tags": tags})
    vhost.http("PUT", f"permissions/{{vhost}}/{user}", dict.fromkeys(("configure", "write", "read"), pattern))
    return vhost.url.replace("guest:guest", f"{user}:secret", 1)


def test_missing_rights_where_an_administrator_asks(vhost):
    user = f"weak-{vhost.name}"
    url = rights(vhost, user, "^mine$")
    finding = vhost.found("orders", url=url)["missing-rights"]
    assert "write on orders, orders.dlq," in finding.problem
    vhost.mend(finding)
    assert vhost.found("orders", url=url) == {}
    given = vhost.http("GET", f"permissions/{{vhost}}/{user}")
    assert given["read"].startswith("^mine$|")
    use(url)


def test_rights_that_are_enough_for_create_false(vhost):
    user = f"weak-{vhost.name}"
    url = rights(vhost, user, "^mine$")
    own = "orders(\\.(dlq|dlq\\.history|dlq\\.lock|suspects|starts|busy|delayed))?"
    enough = {"configure": "^$", "write": r"^(amq\.default|dlx|unpoison\.delay\..*)$", "read": f"^{own}$"}
    vhost.http("PUT", f"permissions/{{vhost}}/{user}", enough)
    assert "enough for an app with create=False" in vhost.found("orders", url=url)["missing-rights"].problem
    vhost.http("PUT", f"permissions/{{vhost}}/{user}", enough | {"read": "^orders$"})
    assert "fails at the first use" in vhost.found("orders", url=url)["missing-rights"].problem


def test_missing_rights_as_the_server_says_it(vhost_4):
    user = f"weak-{vhost_4.name}"
    url = rights(vhost_4, user, "")
    finding = vhost_4.found("orders", url=url.partition("?")[0])["missing-rights"]
    vhost_4.mend(finding)
    assert vhost_4.found("orders", url=url) == {}
    use(url)


def use(url):
    """All that a consumer does needs no more rights."""
    broker = RabbitMQBroker(url)
    broker.open(["orders"])
    broker.connections.ladder().ensure(0)
    broker.has_suspect("orders")
    broker.publish([Outgoing("1", "orders", b"{}", delay=0.1)])
    broker.fetch("orders", 1)
    assert RabbitMQDeadLetters(broker, "orders").count() == 0
    broker.close()


def test_a_user_without_the_tag_is_told_what_was_not_looked_at(vhost):
    user = f"plain-{vhost.name}"
    url = rights(vhost, user, ".*").replace("//guest:guest@127", "//127")
    seen = vhost.found(url=url)
    assert set(seen) == {"cannot-look"}
    assert "which sources there are (name them with --source), the types, arguments" in seen["cannot-look"].problem
    assert seen["cannot-look"].fix.splitlines()[1] == f"rabbitmqctl set_user_tags {user} management"
    rights(vhost, user, ".*", tags="management")
    vhost.policy("dlq", {"delivery-limit": 5})
    seen = vhost.found(url=url)
    assert set(seen) == {"dlq-limit", "cannot-look"}
    assert "Not administrator user" in seen["cannot-look"].problem


def test_without_the_management_api_amqp_still_tells_what_is_missing(vhost, rabbitmq_4):
    vhost.http("DELETE", "queues/{vhost}/orders.dlq")
    for management in ("http://127.0.0.1:1", rabbitmq_4.http_url):
        seen = vhost.found("orders", url=f"{vhost.bare}?management={management}")
        assert set(seen) == {"cannot-look", "dlq-missing"}
    with pytest.raises(ConfigError, match="such as http://host:15672"):
        vhost.found(url=f"{vhost.bare}?management=localhost:15672")


def test_a_consumer_timeout_that_a_policy_makes_too_short(vhost_4):
    vhost_4.policy("^orders", {"consumer-timeout": 60_000}, applies="quorum_queues")
    for longest, says in ((None, "300 s unless"), (90.0, "may run for 90 s")):
        assert says in vhost_4.found(longest=longest)["consumer-timeout-too-short"].problem
    assert vhost_4.found(longest=50.0) == {}
    vhost_4.policy("^orders", {"consumer-timeout": 60_000, "message-ttl": 5, "delivery-limit": 2}, applies="quorum_queues")
    for finding in reversed(findings_for(vhost_4.url, ["orders"], 90.0)):  # in any order
        vhost_4.mend(finding)
    assert vhost_4.found(longest=90.0) == {}


def test_a_consumer_timeout_of_the_whole_server_as_it_shows_of_a_consumer(vhost_4):
    with vhost_4.channel() as channel:
        channel.basic_consume("orders", lambda *_: None)
        seen = until(["consumer-timeout-too-short", "consumer-timeout-unseen"], lambda: vhost_4.found(longest=3_600.0))
        assert "within 1800 s (as the server says" in seen["consumer-timeout-too-short"].problem


def test_consumer_timeout_unseen(vhost, vhost_4):
    assert vhost.found(longest=1_800.0) == {}
    finding = vhost.found(longest=float("inf"))["consumer-timeout-unseen"]
    assert "a handler here has no time limit" in finding.problem
    assert "consumer_timeout = 86400000" in finding.fix
    for _ in range(2):
        vhost_4.mend(vhost_4.found(longest=3_600.0)["consumer-timeout-unseen"])
    assert vhost_4.found(longest=3_600.0) == {}


def test_the_usual_time_of_a_handler_is_the_default_of_the_option():
    assert ConsumerOptions.__dataclass_fields__["timeout"].default == queue_facts.USUAL


@pytest.mark.long
@pytest.mark.parametrize(
    ("spoil", "name"),
    [(("set_vm_memory_high_watermark", "absolute", "1MB"), "memory-alarm"), (("set_disk_free_limit", "900000GB"), "disk-alarm")],
)
def test_alarms(own, spoil, name):
    vhost = VirtualHost(own)
    vhost.run_once()
    own.ctl(*spoil)
    finding = until([name], vhost.found)[name]
    own.ctl(*shlex.split(finding.fix.splitlines()[-1])[1:])
    until([], vhost.found)


@pytest.fixture(scope="module")
def own():
    """Settings of the whole server are changed."""
    with private_or_skip("rabbitmq") as server:
        yield server


@pytest.mark.long
def test_the_commands_are_real(own):
    """Every kind of command that is given, run by the real program."""
    vhost = VirtualHost(own)
    vhost.rabbitmqctl = own.ctl
    vhost.run_once()
    vhost.policy(r"^orders\.dlq$", {"delivery-limit": 5})
    vhost.mend(vhost.found()["dlq-limit"])
    vhost.policy("^orders$", {"message-ttl": 5, "max-length": 9}, operator=True)
    vhost.policy("starts", {"expires": 60_000}, operator=True, name="other")
    vhost.mend(vhost.found()["messages-expire"])
    vhost.mend(vhost.found()["queue-expires"])
    vhost.declare("mails")
    vhost.declare("mails.suspects", {"x-queue-type": "classic"})
    vhost.mend(vhost.found()["suspects-not-quorum"])
    user = f"weak-{vhost.name}"
    url = rights(vhost, user, "^mine$")
    vhost.mend(vhost.found("orders", url=url)["missing-rights"])
    assert vhost.found("orders", url=url) == {}
    own.ctl(*shlex.split(vhost.found("orders", longest=3_600.0)["consumer-timeout-unseen"].fix.splitlines()[2])[1:])
    assert "7200000" in own.ctl("eval", "application:get_env(rabbit, consumer_timeout).")


@pytest.mark.long
def test_feature_flag_off(private_server):
    server = private_server("rabbitmq")
    server.stop()
    for each in (server.folder / "data").iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    server.write("env.conf", "FEATURE_FLAGS=quorum_queue,implicit_default_bindings,virtual_host_metadata,user_limits")
    server.start()
    vhost = VirtualHost(server)
    finding = vhost.found()["feature-flag-off"]
    assert finding.loses
    server.ctl(*shlex.split(finding.fix.splitlines()[1])[1:])
    assert vhost.found() == {}
