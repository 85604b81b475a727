"""Which findings can be accepted, and is each of them known?"""

import ast
from pathlib import Path

import pytest

import unpoison
from unpoison import App
from unpoison.brokers import ADAPTERS, checks_for
from unpoison.cli.doctor import Examination, show
from unpoison.decide.options import settings_from
from unpoison.errors import ConfigError
from unpoison.port.broker import Finding
from unpoison.port.findings import ADOPTED, refuse_losses

OF_A_SERVER = {
    "no-persistence",
    "snapshots-only",
    "appendfsync-no",
    "eviction",
    "fsync-off",
    "full-page-writes-off",
    "synchronous-commit-off",
    "server-too-old",
    "feature-flag-off",
    "network-file-system",
    "damaged",
}
OF_A_MOMENT = {
    "stream-trimmed",  # a consumer that does not run loses more by it
    "suspects-consumed",
    "consumer-timeout-too-short",
    "handler-over-twelve-hours",
    "delay-queue-differs",  # found when the delay is first needed
    "endless-retry",
}


def losing_names():
    """The names of all findings in the code that can lose messages."""
    for file in Path(unpoison.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            made = getattr(call.func, "id", "")
            if made != "loss" and (made not in ("Finding", "Check") or not any(each.arg == "loses" for each in call.keywords)):
                continue
            if isinstance(name := call.args[0], ast.Constant):
                yield name.value


def test_every_finding_that_loses_messages_stops_a_start_or_there_is_a_reason_why_not():
    assert set(losing_names()) == set(ADOPTED) | OF_A_SERVER | OF_A_MOMENT


def test_every_finding_that_can_be_accepted_is_one_of_the_doctors():
    known = {name for scheme, adapter in ADAPTERS.items() if adapter.doctor for name in checks_for(f"{scheme}:", deep=True)}
    assert set(ADOPTED) <= known


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"accept names 'message-expire'.*The names are: .*messages-expire"):
        App("memory://", accept=["message-expire"])
    with pytest.raises(ConfigError, match="accept must be a list"):
        App("memory://", accept="messages-expire")


def test_findings_of_another_broker_can_be_accepted():
    """An app whose URL names RabbitMQ in production and a file elsewhere is one app."""
    assert App("sqlite:///x.db", accept=["messages-expire"]).settings.accept == ("messages-expire",)


def test_the_environment_says_it_with_commas():
    settings = settings_from({"url": "memory://"}, environment={"UNPOISON_ACCEPT": "messages-expire, queue-expires"})
    assert settings.accept == ("messages-expire", "queue-expires")


def test_the_error_names_what_is_lost_what_mends_it_and_what_to_write():
    found = [
        Finding("messages-expire", "A message is deleted.", "Do this:\nfirst\nsecond", loses=True),
        Finding("queue-expires", "A queue is deleted.", "Do that.", loses=True),
        Finding("classic-queue", "It is slow.", "Never mind."),
    ]
    with pytest.raises(ConfigError) as refused:
        refuse_losses("orders", found, ["dlq-limit", "queue-expires"])
    assert str(refused.value) == (
        "Consumer 'orders' does not start: existing settings would lose its messages. Fix them, or accept them by name:\n"
        "  messages-expire: A message is deleted.\n    Do this:\n    first\n    second\n"
        "To start nevertheless: App(…, accept=['dlq-limit', 'messages-expire', 'queue-expires']), "
        "or UNPOISON_ACCEPT=dlq-limit,messages-expire,queue-expires"
    )
    refuse_losses("orders", found, ["messages-expire", "queue-expires"])


def test_the_doctor_tells_what_an_app_accepts_and_does_not_fail_for_it(capsys):
    lost = Finding("messages-expire", "A message is deleted.", "Do this.", loses=True)
    visit = Examination("shop:app", found=[lost], accepted=["messages-expire"])
    assert visit.is_well
    show(visit.what, visit.found, visit.accepted)
    assert "messages-expire (accepted by the app)" in capsys.readouterr().out
    assert not Examination("shop:app", found=[lost], accepted=["queue-expires"]).is_well


def test_the_doctor_fails_where_nothing_can_work(capsys):
    full = Finding("disk-full", "The disk is full.", "Free some space.", stops=True)
    visit = Examination("shop:app", found=[full], accepted=["disk-full"])
    assert not visit.is_well
    show(visit.what, visit.found)
    assert capsys.readouterr().out.startswith("Stops consuming until it is fixed\n")
