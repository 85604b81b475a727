"""Does the script for RabbitMQ create and grant all that an app needs, and nothing twice?"""

import json
import shlex
from urllib.parse import urlsplit

import pytest

from tests.doctor.rabbitmq_vhost import VirtualHost
from tests.fault.planned_topology import Shop, run_script
from unpoison.brokers import needs_for
from unpoison.brokers.rabbitmq.delays import rung


@pytest.fixture
def vhost(rabbitmq):
    with VirtualHost(rabbitmq) as made:
        yield made


def user(vhost, name):
    """A user who may do nothing yet, and its URL."""
    vhost.server.http("PUT", f"/api/users/{name}", {"password": "secret", "tags": ""})
    parts = urlsplit(vhost.bare)
    return parts._replace(netloc=f"{name}:secret@{parts.hostname}:{parts.port}").geturl()


def run_as_administrator(vhost, script, folder):
    login = urlsplit(vhost.server.http_url)
    return run_script(script, folder, RABBITMQ_LOGIN=f"{login.username}:{login.password}")


@pytest.mark.long
@pytest.mark.servers("rabbitmq", "rabbitmq-4")
@pytest.mark.parametrize("server", ["rabbitmq", "rabbitmq_4"])
def test_an_app_with_exactly_the_printed_rights_can_do_everything(request, server, tmp_path):
    with VirtualHost(request.getfixturevalue(server)) as vhost:
        can_do_everything(vhost, tmp_path)


def can_do_everything(vhost, tmp_path):
    shop, name = Shop(tmp_path), f"shop-{vhost.name}"
    url = user(vhost, name)
    try:
        vhost.declare("orders", {"x-queue-type": "quorum"})
        printed = shop.plan(vhost.url, "--user", name)
        assert (printed.code, "queues/" + vhost.name + "/orders " in printed.text) == (0, False), printed
        run_as_administrator(vhost, printed.text, tmp_path)
        given = vhost.http("GET", f"permissions/{{vhost}}/{name}")
        assert (given["configure"], given["write"]) == ("^$", "^(amq\\.default|dlx|unpoison\\.delay\\..*)$")
        shop.uses_everything(url)
        again = shop.plan(vhost.url, "--user", name)
        assert "Nothing is missing here." in again.text
        assert again.err == "Nothing is missing: everything that these sources need exists, and the user may use it.\n"
    finally:
        vhost.server.http("DELETE", f"/api/users/{name}")


def missing(vhost, *sources, url=None, who=None):
    return [(step.kind, step.name) for step in needs_for(url or vhost.url, sources, who).missing()]


def test_only_what_is_missing_is_printed(vhost):
    vhost.run_once("orders", level=6)
    assert missing(vhost, "orders") == []
    with vhost.channel() as channel:
        channel.queue_delete("orders.suspects")
        channel.queue_unbind("orders.dlq", "dlx", "orders")
        channel.exchange_delete("unpoison.delay.6")
    gone = [("exchange", "unpoison.delay.6"), *[("binding", f"unpoison.delay.6 → {rung(6, digit)}") for digit in range(1, 10)]]
    gone += [("binding", "unpoison.delay.6 → unpoison.delay.5"), ("queue", "orders.suspects"), ("binding", "dlx → orders.dlq")]
    assert missing(vhost, "orders") == gone
    # Without the management API neither bindings nor rights can be seen, and queues can.
    by_amqp = missing(vhost, "orders", url=f"{vhost.bare}?management=http://127.0.0.1:1")
    assert [each for each in by_amqp if each[0] in ("queue", "exchange")] == [each for each in gone if each[0] != "binding"]
    assert {kind for kind, _ in by_amqp} == {"queue", "exchange", "binding", "rights"}


def test_rights_that_the_user_has_are_kept_and_the_missing_ones_are_added(vhost):
    vhost.http("PUT", "permissions/{vhost}/guest", {"configure": "", "write": "^audit$", "read": ".*"})
    (step,) = [step for step in needs_for(vhost.url, ["orders"]).missing() if step.kind == "rights"]
    *_, body = shlex.split(step.commands[0])
    printed = json.loads(body)
    assert printed["read"] == ".*"
    assert printed["write"].startswith("^audit$|^(amq\\.default|dlx|")
    assert printed["configure"] == "^$"


def test_a_virtual_host_that_is_missing_comes_first(vhost):
    url = vhost.url.replace(vhost.name, "nowhere%2Fat-all")
    first, *rest = needs_for(url, ["orders"]).missing()
    assert (first.kind, first.commands) == ("vhost", ("create vhosts/nowhere%2Fat-all '{}'",))
    assert [step.kind for step in rest].count("exchange") == 7 + 1
    assert [step.kind for step in rest].count("binding") == 64 + 6 + 1
    assert {step.name for step in rest if step.kind == "queue"} >= {"orders", "orders.dlq", "unpoison.delay.0.1s"}
    assert rest[-1].kind == "rights"


def test_what_loses_messages_of_an_existing_queue_is_in_the_script_with_the_policy_that_mends_it(vhost, tmp_path):
    vhost.declare("orders", {"x-queue-type": "quorum"})
    vhost.policy("^orders$", {"message-ttl": 1000})
    lines = Shop(tmp_path).plan(vhost.url).text.splitlines()
    assert any(line.startswith("# Before consuming, see messages-expire, found by unpoison doctor:") for line in lines)
    assert any(line.startswith(f"#     rabbitmqctl set_policy -p {vhost.name} ") for line in lines)
