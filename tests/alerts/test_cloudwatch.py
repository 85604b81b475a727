"""Is the template one that CloudFormation takes, and does it watch the queues that unpoison uses?"""

import json
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from unpoison import App
from unpoison.cli.main import cli
from unpoison.errors import CapabilityError, ConfigError


def template(*arguments):
    ended = CliRunner().invoke(cli, ["alerts", "--cloudwatch", *arguments], prog_name="unpoison", catch_exceptions=False)
    assert ended.exit_code == 0, ended.stderr
    return ended.stdout


def alarms(text):
    return {name: each["Properties"] for name, each in yaml.safe_load(text)["Resources"].items()}


def watched(text):
    return {dimension["Value"] for alarm in alarms(text).values() for dimension in alarm["Dimensions"]}


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_cloudformation_takes_it(form, tmp_path):
    """By the schemas that Amazon publishes."""
    file = tmp_path / f"alarms.{form}"
    file.write_text(template("orders", "Orders", "a-b_c.fifo", "a_b-c.fifo", *(["--json"] if form == "json" else [])))
    linter = [sys.executable, "-c", "from cfnlint.runner import main; main()"]
    said = subprocess.run([*linter, str(file)], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, ""), said


def test_each_source_has_three_alarms_of_its_own_that_tell_the_topic():
    found = alarms(template("orders", "Orders", "a-b", "a_b", "--depth", "7"))
    assert len(found) == 12
    assert len({json.dumps(each["AlarmName"]) for each in found.values()}) == 12
    assert all(each["AlarmActions"] == each["OKActions"] == [{"Ref": "AlarmTopic"}] for each in found.values())
    first = found["ordersDeadLetters"]
    assert (first["MetricName"], first["Threshold"]) == ("ApproximateNumberOfMessagesVisible", 0)
    assert first["Dimensions"] == [{"Name": "QueueName", "Value": "orders-dlq"}]
    assert first["AlarmDescription"].endswith("/runbook/#UnpoisonDeadLettersGrowing")
    age = found["ordersOldMessages"]
    assert (age["MetricName"], age["Dimensions"][0]["Value"]) == ("ApproximateAgeOfOldestMessage", "orders")
    assert yaml.safe_load(template("orders", "--depth", "7"))["Parameters"]["ManyDeadLetters"]["Default"] == 7


def test_the_queues_of_an_app_are_those_that_it_makes(elasticmq, tmp_path, monkeypatch):
    url = elasticmq.fresh()
    (tmp_path / "mailing.py").write_text(
        f"from unpoison import App\napp = App({url!r})\n\n"
        "@app.consumer('mails')\ndef send(body: str) -> None: ...\n\n"
        "@app.consumer('bills.fifo')\ndef bill(body: str) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    named = watched(template("--app", "mailing:app"))
    app = App(url)
    for source in ("mails", "bills.fifo"):
        app.publish(source, "x", key="k")
        assert app.dlq(source).count() == 0
    there = {address.rpartition("/")[2] for address in elasticmq.client().list_queues()["QueueUrls"]}
    assert len(named) == 4
    assert named <= there


def test_names_that_sqs_does_not_take_and_apps_elsewhere_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="'x y' is not the name of an SQS queue"):
        template("x y")
    (tmp_path / "shoppy.py").write_text("from unpoison import App\napp = App('sqlite:///shop.db')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CapabilityError, match=r"uses sqlite:///"):
        template("--app", "shoppy:app")
