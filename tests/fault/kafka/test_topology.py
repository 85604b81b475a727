"""Does the script for Kafka create and grant all that an app needs? Run by Kafka's own programs."""

import pytest
from confluent_kafka.admin import NewTopic

from servers.kafka import TOOLS
from servers.maven import java
from tests.fault.planned_topology import Shop, run_script, with_programs
from unpoison.brokers import needs_for

pytestmark = pytest.mark.servers("kafka")

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PROGRAMS = {"kafka-topics.sh": "TopicCommand", "kafka-acls.sh": "AclCommand"}
"""What each of these programs runs, as in Kafka's bin folder."""


def settings():
    return {
        "listeners": "PLAINTEXT,SASL_PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_shop="secret" user_admin="hush";',
    }


def programs(folder):
    TOOLS.get()
    folder.mkdir()
    for name, main in PROGRAMS.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {java()} -cp "{TOOLS.find()}" org.apache.kafka.tools.{main} "$@"\n')
        (folder / name).chmod(0o755)
    return with_programs(str(folder))


@pytest.mark.long
def test_an_app_with_exactly_the_printed_rights_can_do_everything(private_server, tmp_path):
    server = private_server("kafka", settings=settings())
    place = f"127.0.0.1:{server.ports['login']}?group=billing&session_timeout=1"
    url, administrators = f"kafka://shop:secret@{place}", f"kafka://admin:hush@{place}"
    login = tmp_path / "admin.properties"
    login.write_text(
        f'security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={LOGIN} username="admin" password="hush";\n'
    )
    shop, path = Shop(tmp_path), programs(tmp_path / "bin")
    client = server.client()
    client.create_topics([NewTopic("orders", 2)])["orders"].result(10)
    printed = shop.plan(administrators, "--user", "shop")
    assert "--topic orders --partitions" not in printed.text
    run_script(printed.text, tmp_path, PATH=path, KAFKA_ADMIN=str(login))
    shop.uses_everything(url, last="well")  # what took a consumer down waits in the same topics
    assert "Nothing is missing here." in shop.plan(administrators, "--user", "shop").text
    # Who may not see the rights is told everything about them, and still nothing about topics.
    assert {step.kind for step in needs_for(url, ["orders", "mail"]).missing()} == {"rights"}


def test_a_cluster_without_an_authorizer_needs_topics_alone(kafka):
    needs = needs_for(f"{kafka.fresh()}&partitions=3", ["orders"], "shop")
    assert {step.kind for step in needs.steps} == {"topic"}
    assert needs.notes == ("This cluster has no authorizer: every client may do everything, and no rights are granted.",)
    source, retry, *_ = [step.commands[0] for step in needs.missing()]
    assert source.endswith(".orders --partitions 3 --config cleanup.policy=delete --config max.message.bytes=16777216")
    assert "--partitions 11 --config cleanup.policy=delete --config retention.ms=-1 --config retention.bytes=-1" in retry
