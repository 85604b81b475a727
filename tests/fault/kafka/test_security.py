"""Kafka behind TLS, logins and ACLs: only the URL changes, the rights listed in docs/kafka.md are enough, refusals are told."""

import argparse
import re
import shlex
import uuid
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.e2e.command_line import unpoison
from tests.fault.certificates import make_certificate
from tests.servers_plugin import private_or_skip
from unpoison.app import App
from unpoison.brokers import findings_for
from unpoison.brokers.kafka import errors
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import given
from unpoison.testing.isolation.diary import wait_until
from unpoison.testing.running import Journal, Running, drained

pytestmark = pytest.mark.servers("kafka")

DOCS = Path(__file__).parents[3] / "docs" / "kafka.md"
PASSWORD = "hush-4711"
LOGIN = "org.apache.kafka.common.security"
CLUSTER = "kafka-cluster"
NO_MORE = UserScramCredentialDeletion("temp", ScramMechanism.SCRAM_SHA_512)


def mostly_long(first, *others):
    """One of a kind is looked at every day."""
    return [first, *(pytest.param(*(each if type(each) is tuple else (each,)), marks=pytest.mark.long) for each in others)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Whoever comes in without a login may do everything; `shop` and `guest` what they are given."""
    certificate, key = make_certificate(tmp_path_factory.mktemp("certificate"))
    with private_or_skip("kafka", settings=secured(certificate, key)) as server:
        vars(server)["certificate"] = certificate
        yield server


def secured(certificate: Path, key: Path) -> dict[str, str]:
    def in_one_line(path: Path) -> str:
        return path.read_text().strip().replace("\n", "\\n")

    settings = {
        "listeners": "PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": in_one_line(certificate),
        "ssl.keystore.key": in_one_line(key),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    }
    users = f'user_shop="{PASSWORD}" user_guest="{PASSWORD}"'
    for listener in ("sasl_plaintext", "sasl_ssl"):
        name = f"listener.name.{listener}"
        settings[f"{name}.plain.sasl.jaas.config"] = f"{LOGIN}.plain.PlainLoginModule required {users};"
        settings[f"{name}.scram-sha-512.sasl.jaas.config"] = f"{LOGIN}.scram.ScramLoginModule required;"
    return settings


def fresh() -> str:
    return f"t{uuid.uuid4().hex[:8]}."


def logged_in(server, prefix: str, user: str = "shop", password: str = PASSWORD) -> str:
    return f"kafka://{user}:{password}@127.0.0.1:{server.ports['login']}?prefix={prefix}&group=billing&partitions=1&session_timeout=1"


# TLS


@pytest.mark.parametrize("form", mostly_long("kafka://{}?security.protocol=SSL&", "kafka+ssl://{}?", "kafka://{}?"))
def test_messages_go_both_ways_over_tls(server, form):
    url = form.format(f"127.0.0.1:{server.ports['tls']}") + f"ssl.ca.location={server.certificate}&prefix={fresh()}&group=billing"
    app, seen = App(url), []
    given.consumer(app, "orders", seen.append)
    app.publish_many("orders", range(10))
    assert drained(app)["orders"].done == 10
    assert sorted(seen) == list(range(10))
    app.close()


@pytest.fixture
def no_last_look(monkeypatch):
    """The long wait at the end is not needed to hear why nobody answers."""
    monkeypatch.setattr(errors, "LOOKS", errors.LOOKS[:-1])


@pytest.mark.usefixtures("no_last_look")
def test_a_certificate_that_nobody_vouches_for_is_told(server):
    app = App(f"kafka+ssl://127.0.0.1:{server.ports['tls']}")
    with pytest.raises(BrokerUnavailable, match=r"TLS with Kafka at .* failed: .*certificate verify failed.*ssl\.ca\.location"):
        app.publish("orders", 1)
    app.close()


@pytest.mark.long
def test_a_server_that_wants_tls_or_a_login_and_gets_neither_is_told(server):
    for port in ("tls", "login"):
        app = App(f"kafka://127.0.0.1:{server.ports[port]}")
        with pytest.raises(BrokerUnavailable, match=r"If it requires TLS or a login.*kafka\+ssl://"):
            app.publish("orders", 1)
        app.close()


def test_a_file_of_certificates_that_is_not_there_is_told():
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
        App("kafka+ssl://127.0.0.1:1?ssl.ca.location=/nowhere/ca.pem").publish("orders", 1)


# Logins


@pytest.mark.parametrize(("mechanism", "port"), mostly_long(("SCRAM-SHA-512", "tls-login"), ("PLAIN", "login")))
def test_a_user_with_a_password_gets_in(server, mechanism, port):
    user, prefix, tls = (
        ("shop", fresh(), {}) if mechanism == "PLAIN" else ("till", fresh(), {"ssl.ca.location": server.certificate})
    )
    if user == "till":
        add_scram_user(server, user)
    allow(server, prefix, user, documented())
    options = "&".join(
        f"{name}={value}" for name, value in {"sasl.mechanism": mechanism, "prefix": prefix, "group": "billing", **tls}.items()
    )
    app, seen = App(f"kafka://{user}:{PASSWORD}@127.0.0.1:{server.ports[port]}?{options}"), []
    given.consumer(app, "orders", seen.append)
    app.publish_many("orders", range(10))
    assert drained(app)["orders"].done == 10
    app.close()


def add_scram_user(server, name: str) -> None:
    """Returns when the server lets it in: it learns of users a moment after it has stored them."""
    how = UserScramCredentialUpsertion(name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode())
    admin = server.client()
    for answer in admin.alter_user_scram_credentials([how]).values():
        answer.result(10)
    login = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": name}
    address = {"bootstrap.servers": f"127.0.0.1:{server.ports['login']}", "sasl.password": PASSWORD}

    def gets_in() -> bool:
        try:
            return bool(server.client(**login, **address).list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    wait_until(gets_in, lambda: f"{name} does not get in")


@pytest.mark.long
def test_a_login_that_is_revoked_while_a_consumer_has_nothing_to_do_is_told(server, monkeypatch):
    monkeypatch.setattr(errors, "GONE_FOR", 300.0)  # not that the server was gone for a moment
    prefix, handled = fresh(), []
    add_scram_user(server, "temp")
    allow(server, prefix, "temp", documented())
    app = App(f"{logged_in(server, prefix, 'temp')}&sasl.mechanism=SCRAM-SHA-512")
    given.consumer(app, "orders", handled.append, isolation="thread", schema=int)
    app.publish("orders", 1)
    with Journal() as journal, Running(app):
        wait_until(lambda: handled == [1], lambda: f"{handled} were handled")
        admin = server.client()
        for answer in admin.alter_user_scram_credentials([NO_MORE]).values():
            answer.result(10)
        with server.down():  # whoever is logged in stays so for as long as its connection lasts
            pass
        journal.wait_for("pause")
        assert re.search(r"Kafka at \S+ refuses the login: .*Check the user", journal.of("pause")[0])
        assert PASSWORD not in journal.of("pause")[0]
        add_scram_user(server, "temp")
        journal.wait_for("resume")
        app.publish("orders", 2)
        wait_until(lambda: 2 in handled, lambda: f"{handled} were handled")


@pytest.mark.usefixtures("no_last_look")
@pytest.mark.parametrize("mechanism", mostly_long("PLAIN", "SCRAM-SHA-512"))
def test_a_wrong_password_is_told_without_waiting_and_without_the_password(server, mechanism):
    url = f"{logged_in(server, fresh(), password='wrong-' + PASSWORD)}&sasl.mechanism={mechanism}"
    app = App(url)
    with pytest.raises(BrokerUnavailable, match=r"refuses the login: .*[Aa]uthentication failed.*sasl\.mechanism") as raised:
        app.publish("orders", 1)
    assert PASSWORD not in str(raised.value)
    with pytest.raises(BrokerUnavailable, match="refuses the login"):
        findings_for(url)
    app.close()


IN_FRONT, AMONG_THE_OPTIONS = (
    "kafka://shop:{}@{}?group=x",
    "kafka://{1}?group=x&sasl.username=shop&sasl.mechanism=PLAIN&sasl.password={0}",
)


@pytest.mark.parametrize("form", mostly_long(AMONG_THE_OPTIONS, IN_FRONT))
def test_no_command_shows_a_password(server, tmp_path, form):
    url = form.format(f"wrong-{PASSWORD}", f"127.0.0.1:{server.ports['login']}")
    (tmp_path / "shop.py").write_text("from unpoison import App\napp = App()\n@app.consumer('orders')\ndef handle(order): ...\n")
    commands = [
        ("doctor", url),
        ("doctor", "shop:app"),
        ("dlq", "ls", "--url", url, "--source", "orders"),
        ("publish", url, "orders", "1"),
        ("plan", "--app", "shop:app"),
    ]
    for command in commands:
        ended = unpoison(*command, cwd=tmp_path, UNPOISON_URL=url)
        assert PASSWORD not in ended.text + ended.err, command
        if command[0] != "plan":
            assert ended.code == 1
            assert "uthentication failed" in ended.text + ended.err, command


# ACLs


def documented() -> list[tuple[ResourceType, str, ResourcePatternType, AclOperation]]:
    """What the page lists, right by right."""
    block = re.search(r"```text\n(.*?)```", DOCS.read_text().partition("## Permissions")[2], re.DOTALL)
    assert block, "docs/kafka.md has no list of permissions"
    parser = argparse.ArgumentParser()
    parser.add_argument("--topic")
    parser.add_argument("--group")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--operation", action="append")
    parser.add_argument("--resource-pattern-type", default="literal")
    rights = []
    for line in block[1].splitlines():
        given = parser.parse_args(shlex.split(line))
        kind = ResourceType.TOPIC if given.topic else ResourceType.GROUP if given.group else ResourceType.BROKER
        pattern = ResourcePatternType[given.resource_pattern_type.upper()]
        for operation in given.operation:
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
            rights.append((kind, given.topic or given.group or CLUSTER, pattern, AclOperation[name]))
    return rights


def allow(server, prefix: str, user: str, rights) -> None:
    """Returns when the server goes by them."""
    bindings = [
        AclBinding(
            kind, name if name == CLUSTER else prefix + name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW
        )
        for kind, name, pattern, operation in rights
    ]
    admin = server.client()
    for answer in admin.create_acls(bindings).values():
        answer.result(10)
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY
    )
    wait_until(lambda: set(bindings) <= set(admin.describe_acls(every).result(10)), lambda: f"{user} is not allowed {bindings}")


class Shop:
    """An app that has something to retry, something to delay and something that dies."""

    def __init__(self, url: str) -> None:
        self.url, self.app = url, App(url)
        self.is_repaired, self.done = False, []
        given.consumer(self.app, "orders", self.handle, backoff=Backoff.fixed(0.1))

    def handle(self, number: int, delivery: Delivery) -> None:
        if number == 1 and delivery.attempt == 1:
            raise ConnectionError("not now")
        if number == 2 and not self.is_repaired:
            raise ValueError("never")
        self.done.append(number)

    def publish(self) -> None:
        self.app.publish_many("orders", range(3))
        self.app.publish("orders", 3, delay=0.2)

    def repair(self) -> None:
        """What died is sent again; then nothing is left."""
        self.is_repaired = True
        self.app.dlq("orders").replay_all()
        drained(self.app)
        assert sorted(self.done) == [0, 1, 2, 3]
        self.app.dlq("orders").purge()
        assert list(self.app.dlq("orders").letters(state=None)) == []
        assert findings_for(self.url, ["orders"]) == []


def test_the_rights_on_the_page_are_enough_for_everything(server):
    prefix = fresh()
    allow(server, prefix, "shop", documented())
    shop = Shop(logged_in(server, prefix))
    shop.publish()
    tally = drained(shop.app)["orders"]
    assert (tally.done, tally.dead) == (3, 1)
    shop.repair()
    shop.app.close()


@pytest.mark.long
def test_who_only_publishes_needs_no_more_than_the_page_says(server):
    prefix, everything = fresh(), documented()
    owner = Shop(f"{server.url}?prefix={prefix}&group=billing")
    owner.app.publish("orders", 0)
    (topic,) = [right for right in everything if right[1] == "orders" and right[3] is AclOperation.WRITE]
    others = (ResourceType.TOPIC, "orders.", ResourcePatternType.PREFIXED)
    allow(server, prefix, "guest", [topic, (*others, AclOperation.DESCRIBE)])
    app = App(logged_in(server, prefix, "guest"))
    app.publish_many("orders", [4, 5])
    allow(server, prefix, "guest", [(*others, AclOperation.WRITE)])
    app.publish("orders", 6, delay=0.1)
    app.close()
    drained(owner.app)
    assert sorted(owner.done) == [0, 4, 5, 6]
    owner.app.close()


def test_a_topic_that_a_user_may_not_see_is_not_taken_for_one_that_is_missing(server):
    prefix = fresh()
    owner = App(f"{server.url}?prefix={prefix}")
    owner.publish("orders", 1)
    owner.close()
    app = App(logged_in(server, prefix, "guest"))
    with pytest.raises(BrokerUnavailable, match=f"needs Describe on topic '{prefix}orders'"):
        app.publish("orders", 2)
    app.close()


def each(*operations: AclOperation):
    rights = [right for right in documented() if right[3] in operations]
    names = {right: f"{right[3].name}-{right[0].name}-{right[1]}" for right in rights}
    last = rights[-1]
    return [pytest.param(right, id=name, marks=[pytest.mark.long] * (right != last)) for right, name in names.items()]


@pytest.mark.parametrize("missing", each(AclOperation.WRITE, AclOperation.CREATE))
def test_a_right_to_publish_that_is_missing_is_named(server, missing):
    prefix = fresh()
    allow(server, prefix, "shop", [right for right in documented() if right != missing])
    shop = Shop(logged_in(server, prefix))
    with pytest.raises(BrokerUnavailable, match=f"needs {missing[3].name.title()} on topic '{prefix}{missing[1]}"):
        shop.publish()
    shop.app.close()


@pytest.mark.long
@pytest.mark.parametrize("missing", each(AclOperation.READ))
def test_a_right_to_consume_that_is_missing_is_named_until_it_is_given(server, missing):
    prefix = fresh()
    allow(server, prefix, "shop", [right for right in documented() if right != missing])
    shop = Shop(logged_in(server, prefix))
    shop.publish()
    kind = "topic" if missing[0] is ResourceType.TOPIC else "group"
    name = re.compile(rf"needs .*Read on .*{kind} '{prefix}{missing[1]}")
    with Journal() as journal, Running(shop.app, until_empty=True) as running:
        wait_until(lambda: any(map(name.search, journal.of("pause"))), lambda: f"{missing} is not told: {journal.errors()}")
        allow(server, prefix, "shop", [missing])
        running.wait()
    shop.repair()
    shop.app.close()


@pytest.mark.long
@pytest.mark.parametrize("number", range(2), ids=["of the topic", "of the group"])
def test_a_right_that_is_taken_away_from_a_consumer_is_named_until_it_is_given_again(server, number):
    prefix = fresh()
    taken = [right for right in documented() if right[1] in ("orders", "billing") and right[3] is AclOperation.READ][number]
    allow(server, prefix, "shop", documented())
    app, seen = App(logged_in(server, prefix)), []
    given.consumer(app, "orders", seen.append)
    with Journal() as journal, Running(app):
        app.publish("orders", 1)
        wait_until(lambda: seen == [1], lambda: f"{seen}")
        forbid(server, prefix, "shop", taken)
        app.publish("orders", 2)
        name = re.compile(rf"needs Read on .*'{prefix}{taken[1]}'")
        wait_until(lambda: any(map(name.search, journal.of("pause"))), lambda: f"{taken} is not told: {journal.errors()}")
        allow(server, prefix, "shop", [taken])
        wait_until(lambda: 2 in seen, lambda: f"{seen}")
    app.close()


def forbid(server, prefix: str, user: str, right) -> None:
    kind, name, pattern, operation = right
    admin = server.client()
    which = AclBindingFilter(kind, prefix + name, pattern, f"User:{user}", None, operation, AclPermissionType.ALLOW)
    for answer in admin.delete_acls([which]).values():
        answer.result(10)
    wait_until(lambda: not admin.describe_acls(which).result(10), lambda: f"{right} is still there")


@pytest.mark.parametrize("missing", each(AclOperation.DESCRIBE_CONFIGS))
def test_a_right_to_examine_that_is_missing_is_named(server, missing):
    """`guest` has never been given one on the cluster, which all tests share."""
    prefix = fresh()
    user = "guest" if missing[1] == CLUSTER else "shop"
    allow(server, prefix, user, [right for right in documented() if right != missing])
    shop = Shop(logged_in(server, prefix, user))
    shop.publish()
    (finding,) = findings_for(shop.url, ["orders"])
    assert finding.name == "cannot-look"
    assert "DescribeConfigs" in finding.fix
    assert (CLUSTER if missing[1] == CLUSTER else f"{prefix}orders").removeprefix("kafka-") in finding.fix
    shop.app.close()
