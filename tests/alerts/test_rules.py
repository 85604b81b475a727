"""Does each alert fire when it must, and does it stay silent when it only looks like it?"""

import re

import pytest
import yaml

from servers.prometheus import promtool
from tests.alerts.asking import USUAL, Case, firing, judged, series
from unpoison.alerting.alert import Thresholds
from unpoison.alerting.catalogue import ENDED, INCURABLE, alerts, records
from unpoison.alerting.panels import ROWS
from unpoison.alerting.promql import checked_labels
from unpoison.alerting.rules import document
from unpoison.alerting.yaml_text import yaml_text
from unpoison.errors import ConfigError
from unpoison.model.verdict import ErrorClassification
from unpoison.observing.families import FAMILIES
from unpoison.observing.look import PAUSES

pytestmark = pytest.mark.servers("prometheus")

GROWING, MANY, OVER = "UnpoisonDeadLettersGrowing", "UnpoisonManyDeadLetters", "UnpoisonAttemptsOverLimit"
PERMANENT, PAUSED, ADMISSION = "UnpoisonPermanentErrors", "UnpoisonSourcePaused", "UnpoisonAdmissionPaused"
OPERATOR, GONE, OLD = "UnpoisonPausedByOperator", "UnpoisonNoConsumer", "UnpoisonOldMessages"
BREAKER, BUDGET, CRASHING = "UnpoisonBreakerOpen", "UnpoisonRetryBudgetUsedUp", "UnpoisonWorkersCrashing"
STORE, BLIND, UNWRITABLE = "UnpoisonStoreAway", "UnpoisonDepthsUnknown", "UnpoisonDLQNotWritable"
HALF, ALMOST = "UnpoisonRetentionHalfUsed", "UnpoisonRetentionAlmostUsed"


def depth(values, instance="a"):
    return series("dlq_depth", values, instance)


def over(values, instance="a"):
    return series("unpoison_attempts_over_limit_total", values, instance)


def handled(values, instance="a"):
    return series("unpoison_messages_handled_total", values, instance)


def dead(values, classification="permanent", instance="a"):
    return series("poison_pills_total", values, instance, classification=classification)


def paused(reason, values, instance="a"):
    return series("unpoison_source_paused", values, instance, reason=reason)


def running(values, instance="a"):
    return series("unpoison_consumer_running", values, instance)


def oldest(values, instance="a"):
    return series("unpoison_source_oldest_seconds", values, instance)


def breaker(values, dependency="billing", instance="a"):
    return series("unpoison_breaker_state", values, instance, dependency=dependency)


def put_off(values, instance="a"):
    return series("unpoison_retries_put_off_total", values, instance)


def ends(values, kind="crash", instance="a"):
    return series("unpoison_worker_ends_total", values, instance, kind=kind)


def store(values, instance="a"):
    return series("unpoison_store_up", values, instance, queue="")


def writable(values, instance="a"):
    return series("unpoison_dlq_writable", values, instance)


def retention(values, instance="a"):
    return series("unpoison_retention_used_ratio", values, instance)


FIRES = {
    "the first dead letter ever": (GROWING, [depth("0x10 1x20")], "20m", {"value": "1"}),
    "growing, seen by two consumers": (GROWING, [depth("3x10 9x20"), depth("3x9 8x20", "b")], "20m", {"value": "9"}),
    "growing over a restart of the consumer": (GROWING, [depth("3x10 stale _x2 7x20", "a")], "20m", {"value": "7"}),
    "growing, with one slow scrape": (GROWING, [depth("3x10 9x3 _ 9x20")], "17m", {"value": "9"}),
    "replayed and back": (GROWING, [depth("50x10 0x5 20x20")], "25m", {"value": "20"}),
    "more than 100": (MANY, [depth("0x5 101x20")], "15m", {"value": "101"}),
    "more than 100, and the consumer restarts": (MANY, [depth("200x5 stale _x2 200x20")], "8m", {"value": "200"}),
    "more than 100, each consumer sees them": (MANY, [depth("150x20"), depth("150x20", "b")], "15m", {"value": "150"}),
    "a start over the limit": (OVER, [over("0x5 1x20")], "7m", {}),
    "a start over the limit before the first scrape": (OVER, [over("_x5 1x20")], "7m", {}),
    "a start over the limit in one of two": (OVER, [over("0x30"), over("2x5 3x20", "b")], "8m", {}),
    "5 % fail for good": (PERMANENT, [handled("0+95x30"), dead("0+5x30")], "25m", {"value": "5%"}),
    "two classes and two consumers add up": (
        PERMANENT,
        [handled("0+49x30"), dead("0+1x30"), handled("0+49x30", "b"), dead("0+1x30", "bug", "b")],
        "25m",
        {"value": "2%"},
    ),
    "a bad deploy that fails everything before its first scrape": (
        PERMANENT,
        [handled("0+100x10 stale"), handled("_x11 0x20", "b"), dead("_x11 900x20", "bug", "b")],
        "18m",
        {"value": "54.55%"},
    ),
    "a share over restarts": (PERMANENT, [handled("0+90x6 0+90x20"), dead("0+10x6 0+10x20")], "20m", {"value": "10%"}),
    "all fail, none is handled": (PERMANENT, [dead("0+1x30", "invalid")], "25m", {"value": "100%"}),
    "an outage for 15 minutes": (PAUSED, [paused("outage", "0x5 1x30")], "21m", {"reason": "outage"}),
    "the broker is away, in one of two": (
        PAUSED,
        [paused("broker", "0x40"), paused("broker", "1x40", "b")],
        "20m",
        {"reason": "broker"},
    ),
    "an outage, with a slow scrape": (PAUSED, [paused("outage", "1x8 _x2 1x30")], "17m", {"reason": "outage"}),
    "too many dead letters": (ADMISSION, [paused("admission", "0x5 1x30")], "9m", {}),
    "paused since yesterday": (OPERATOR, [paused("operator", "1x400")], "5h", {}),
    "all consumers are gone": (GONE, [running("1x10 stale"), running("1x12 stale", "b")], "25m", {}),
    "a consumer that does not turn": (GONE, [running("1x10 0x20")], "21m", {}),
    "a message waits for 20 minutes": (OLD, [oldest("1200x20"), oldest("0x20", "b")], "10m", {"value": "20m 0s"}),
    "a dependency is down, probes in between": (
        BREAKER,
        [breaker("0x3 2 2 1 2 2 2 1 2 2 2 1 2 2 2 1 2")],
        "15m",
        {"dependency": "billing"},
    ),
    "two dependencies": (
        BREAKER,
        [breaker("2x30"), breaker("2x30", "other")],
        "15m",
        [{"dependency": "billing"}, {"dependency": "other"}],
    ),
    "retries are put off for 20 minutes": (BUDGET, [put_off("0+30x30"), put_off("0+30x30", "b")], "25m", {"value": "1"}),
    "many workers crash": (CRASHING, [ends("0+2x30")], "20m", {"value": "30", "kind": "crash"}),
    "many workers crash over restarts": (CRASHING, [ends("0+2x5 0+2x5 0+2x20")], "20m", {"value": "26", "kind": "crash"}),
    "many workers run out of memory before the first scrape": (
        CRASHING,
        [ends("_x5 60x20", "memory")],
        "8m",
        {"value": "60", "kind": "memory"},
    ),
    "the store is away for all": (STORE, [store("0x30"), store("0x30", "b")], "20m", {"queue": ""}),
    "the store is away for one": (STORE, [store("1x30"), store("0x30", "b")], "20m", {"queue": ""}),
    "the broker does not say how deep it is": (BLIND, [running("1x30"), depth("3x5 stale")], "17m", {}),
    "it has never said": (BLIND, [running("1x30"), running("1x30", "b")], "10m", {}),
    "the DLQ is full": (UNWRITABLE, [writable("1x3 0x20"), writable("1x20", "b")], "10m", {}),
    "more than half of the retention": (HALF, [retention("0.51x20")], "10m", {"value": "51%"}),
    "nearly all of the retention": (ALMOST, [retention("0.95x20")], "5m", {"value": "95%"}),
}  # fmt: skip

SILENT = {
    "old dead letters": (GROWING, [depth("40x60")], "50m"),
    "old dead letters and a restart": (GROWING, [depth("40x20 stale _x3 40x60")], "30m"),
    "old dead letters and a new consumer": (GROWING, [depth("40x60"), depth("_x20 40x60", "b")], "30m"),
    "fewer than before": (GROWING, [depth("90x20 40x60")], "30m"),
    "a replay that one of two has not seen yet": (GROWING, [depth("90x20 0x60"), depth("90x21 0x60", "b")], "21m"),
    "a dead letter an hour ago": (GROWING, [depth("0x5 1x90")], "65m"),
    "no dead letter": (GROWING, [depth("0x60")], "50m"),
    "no series at all": (GROWING, [running("1x20")], "10m"),
    "exactly 100": (MANY, [depth("100x60")], "30m"),
    "60 seen by two is not 120": (MANY, [depth("60x60"), depth("60x60", "b")], "30m"),
    "over 100 for two minutes": (MANY, [depth("0x10 150x2 0x20")], "13m"),
    "never over the limit": (OVER, [over("0x60")], "30m"),
    "over the limit an hour ago, and a restart": (OVER, [over("0x5 4x20 0x60")], "60m"),
    "over the limit an hour ago, and a scrape that failed": (OVER, [over("0x5 4x60 stale 4x30")], "82m"),
    "over the limit long ago, and the consumer was away for a while": (OVER, [over("4x60 stale _x12 0x20")], "80m"),
    "one of three messages": (PERMANENT, [handled("0x5 2x30"), dead("0x5 1x30")], "15m"),
    "four of forty": (PERMANENT, [handled("0+4x9 36x30"), dead("0x5 4x30")], "12m"),
    "half a percent": (PERMANENT, [handled("0+995x30"), dead("0+5x30")], "25m"),
    "half a percent over restarts": (PERMANENT, [handled("0+995x6 0+995x6 0+995x20"), dead("0+5x6 0+5x6 0+5x20")], "22m"),
    "half a percent, and a scrape that failed": (PERMANENT, [handled("0+995x5 _ 5970+995x30"), dead("0+5x5 _ 30+5x30")], "20m"),
    "what retries could have cured": (PERMANENT, [handled("0+95x30"), dead("0+5x30", "timeout")], "25m"),
    "no traffic": (PERMANENT, [handled("0x30"), dead("0x30")], "25m"),
    "an outage of 10 minutes": (PAUSED, [paused("outage", "0x5 1x10 0x20")], "15m"),
    "an operator's pause is no outage": (PAUSED, [paused("operator", "1x60"), paused("admission", "1x60")], "50m"),
    "paused for one scrape": (ADMISSION, [paused("admission", "0x5 1 0x20")], "6m"),
    "a pause for maintenance": (OPERATOR, [paused("operator", "1x200")], "3h"),
    "a rolling restart": (GONE, [running("1x10 stale"), running("_x8 1x40", "b")], "30m"),
    "a restart of three minutes": (GONE, [running("1x10 stale _x2 1x40")], "14m"),
    "one slow scrape": (GONE, [running("1x10 _ 1x40")], "11m"),
    "scaled down from two to one": (GONE, [running("1x60"), running("1x10 stale", "b")], "50m"),
    "never ran here": (GONE, [depth("0x60")], "30m"),
    "removed two days ago": (GONE, [running("1x10 stale")], "49h"),
    "a message waits for 10 minutes": (OLD, [oldest("600x60")], "30m"),
    "nothing waits": (OLD, [oldest("0x60")], "30m"),
    "open for 3 minutes": (BREAKER, [breaker("0x5 2x3 0x40")], "12m"),
    "it only ramps up": (BREAKER, [breaker("0x5 1x40")], "40m"),
    "a burst of retries": (BUDGET, [put_off("0x5 50x60")], "9m"),
    "a burst of retries, over": (BUDGET, [put_off("0x5 50x60")], "30m"),
    "three poison messages": (CRASHING, [ends("0x5 5x2 10x2 15x30")], "12m"),
    "many crashes, months ago, and a restart": (CRASHING, [ends("90000x20 0x30")], "25m"),
    "the store is away for a moment": (STORE, [store("1x5 0x3 1x40")], "8m"),
    "no store": (STORE, [running("1x60")], "30m"),
    "one of two cannot read depths": (
        BLIND,
        [running("1x60"), running("1x60", "b"), depth("3x5 stale"), depth("3x60", "b")],
        "40m",
    ),
    "depths could not be read for a few minutes": (BLIND, [running("1x60"), depth("3x10 stale _x5 3x40")], "16m"),
    "all is known": (BLIND, [running("1x60"), depth("0x60")], "40m"),
    "the DLQ was full for a moment": (UNWRITABLE, [writable("1x3 0x2 1x40")], "6m"),
    "a third of the retention": (HALF, [retention("0.33x60")], "30m"),
    "half of the retention is not nearly all": (ALMOST, [retention("0.6x60")], "30m"),
    "retention is not known": (HALF, [running("1x60")], "30m"),
}  # fmt: skip


def fires(case):
    name, given, at, labels = FIRES[case]
    return Case(name, given, at, [firing(name, **each) for each in (labels if isinstance(labels, list) else [labels])])


def silent(case):
    return Case(*SILENT[case])


@pytest.fixture(scope="module")
def holds_in_each_case(tmp_path_factory):
    """All of them at once: promtool takes longer to start than to judge one."""
    return judged(tmp_path_factory.mktemp("all"), [*map(fires, FIRES), *map(silent, SILENT)])[0] == 0


@pytest.mark.parametrize("case", FIRES)
def test_it_fires(case, holds_in_each_case, tmp_path):
    if not holds_in_each_case:
        code, said = judged(tmp_path, [fires(case)])
        assert code == 0, said


@pytest.mark.parametrize("case", SILENT)
def test_it_stays_silent(case, holds_in_each_case, tmp_path):
    if not holds_in_each_case:
        code, said = judged(tmp_path, [silent(case)])
        assert code == 0, said


def test_every_alert_is_tried_both_ways():
    named = {each.name for each in alerts(USUAL)}
    assert {name for name, *_ in FIRES.values()} == {name for name, *_ in SILENT.values()} == named


@pytest.mark.parametrize(
    "chosen",
    [
        USUAL,
        Thresholds(depth=0, oldest=90.5, share=0.5, labels=(), runbook="https://wiki/x/"),
        Thresholds(labels=("namespace", "job")),
    ],
    ids=["usual", "no labels", "two labels"],
)
def test_promtool_accepts_the_rules(chosen, tmp_path):
    text = yaml_text(document(chosen))
    (tmp_path / "rules.yml").write_text(text)
    code, said = promtool("check", "rules", "--lint-fatal", "rules.yml", folder=tmp_path)
    assert code == 0, said
    assert yaml.safe_load(text) == document(chosen)


def test_thresholds_are_those_that_were_chosen(tmp_path):
    chosen = Thresholds(depth=3, labels=("namespace",), runbook="https://wiki.example/")
    given = [series("dlq_depth", "4x20", namespace="eu", job="x"), series("dlq_depth", "2x20", namespace="us", job="x")]
    expected = firing(MANY, value="4", chosen=chosen, namespace="eu", job="")
    assert expected["exp_annotations"]["runbook_url"] == f"https://wiki.example/#{MANY}"
    code, said = judged(tmp_path, [Case(MANY, given, "10m", [expected])], chosen)
    assert code == 0, said


def test_queues_of_the_same_name_in_two_jobs_are_two():
    for alert in alerts(USUAL):
        assert "job" in alert.expression, alert.name


@pytest.mark.parametrize("labels", [("instance",), ("a-b",), ("",)], ids=str)
def test_labels_that_cannot_group_are_refused(labels):
    with pytest.raises(ConfigError):
        checked_labels(labels)


METRICS = {each.name for each in FAMILIES} | {"unpoison_handler_seconds_bucket", "unpoison_store_up", "unpoison_info"}


def test_every_metric_is_one_that_consumers_have():
    expressions = [each.expression for each in alerts(USUAL)] + [each.expression for each in records(USUAL)]
    expressions += [query.expression for _, panels in ROWS for panel in panels for query in panel.queries]
    named = {name for text in expressions for name in re.findall(r"\b(?:unpoison_|poison_|message_|dlq_)\w+", text)}
    assert named - {ENDED.split(":")[1]} <= METRICS
    assert {reason for text in expressions for reason in re.findall(r'reason=~"([^"]+)"', text)} == {
        "outage|broker",
        "admission",
        "operator",
    }
    assert {"outage", "broker", "admission", "operator"} == set(PAUSES)
    assert set(re.search(r'classification=~"([^"]+)"', INCURABLE)[1].split("|")) < set(map(str, ErrorClassification))
