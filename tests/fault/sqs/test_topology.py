"""Does the script for SQS create and grant all that an app needs? Run by the program of AWS."""

import json
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.contract.sqs_lab import SQSLab
from tests.fault.planned_topology import Shop, run_script, with_programs
from unpoison.brokers import needs_for
from unpoison.brokers.sqs.broker import SQSBroker

IAM = """#!/bin/sh
for word in "$@"; do [ "$word" = iam ] && {{ printf '%s\\n' "$@" > {told}; exit 0; }}; done
exec {aws} "$@"
"""
"""No server here has IAM: what would go there is kept, and everything else goes to the real program."""


@pytest.fixture
def lab(tmp_path, elasticmq):
    with SQSLab(elasticmq, tmp_path, visibility=2, with_proxy=True) as lab:
        yield lab


def run_as_administrator(script, folder):
    """Gives the words with which IAM was called."""
    told, programs = folder / "iam.words", folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "aws").write_text(IAM.format(told=told, aws=Path(sys.executable).with_name("aws")))
    (programs / "aws").chmod(0o755)
    login = {"AWS_ACCESS_KEY_ID": "admin", "AWS_SECRET_ACCESS_KEY": "hush"}
    run_script(script, folder, PATH=with_programs(str(programs)), **login)
    return told.read_text().splitlines()


def refuses_what_is_not_in(policy):
    """For the proxy: what the policy does not allow is denied, by action and by queue."""
    (statement,) = policy["Statement"]
    queues = {arn.rpartition(":")[2] for arn in statement["Resource"]}

    def denies(operation, queue):
        is_named = not queue or urlsplit(queue).path.rpartition("/")[2] in queues
        return f"sqs:{operation.removesuffix('Batch')}" not in statement["Action"] or not is_named

    return denies


@pytest.mark.long
def test_an_app_with_exactly_the_printed_rights_can_do_everything(lab, tmp_path):
    shop = Shop(tmp_path, ("orders", "mail.fifo"))
    lab.queue("orders").create(VisibilityTimeout="77")
    printed = shop.plan(lab.url, "--user", "shop")
    words = run_as_administrator(printed.text, tmp_path)
    assert words[:6] == ["iam", "put-user-policy", "--user-name", "shop", "--policy-name", "unpoison"]
    assert lab.queue("orders").attributes()["VisibilityTimeout"] == "77"
    lab.proxy.seen.clear()
    policy = json.loads(words[-1])
    lab.proxy.denies = refuses_what_is_not_in(policy)
    shop.uses_everything(lab.url)
    used = {f"sqs:{operation.removesuffix('Batch')}" for operation, _ in lab.proxy.seen}
    assert used == set(policy["Statement"][0]["Action"])
    assert [step.kind for step in needs_for(lab.url, shop.sources, "shop").missing()] == ["rights"]
    assert needs_for(lab.url, shop.sources).missing() == []


def test_only_what_is_missing_is_printed(lab):
    assert len(needs_for(lab.url, ["orders"]).missing()) == 7
    broker = SQSBroker(lab.url)
    broker.open(["orders"])
    broker.close()
    lab.queue("orders-suspects").delete()
    (step,) = needs_for(lab.url, ["orders"]).missing()
    assert step.name.endswith("orders-suspects")
    create, name, attributes = shlex.split(step.commands[1])
    assert (create, name) == ("create", step.name)
    assert json.loads(json.loads(attributes)["RedrivePolicy"])["deadLetterTargetArn"] == "$dlq"


def test_a_role_gets_its_policy_and_where_the_queues_are_stands_in_the_script():
    needs = needs_for("sqs://key:secret@?region=eu-central-1&endpoint=http://127.0.0.1:1", ["orders"], "role/shop")
    assert needs.setup[1] == 'sqs() { aws --region eu-central-1 --endpoint-url http://127.0.0.1:1 sqs "$@"; }'
    assert needs.steps[-1].commands[-1].startswith("aws iam put-role-policy --role-name shop --policy-name unpoison ")
