"""What do the alerts and the dashboard make of real consumers under poison, scraped by a real Prometheus?

The rules are those that `unpoison alerts` prints, but for the times: an alert fires as soon as its expression is true.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from servers.prometheus import Prometheus
from tests.alerts.asking import asked_by_grafana
from tests.e2e.command_line import unpoison
from tests.e2e.consumer_process import ConsumerProcess
from tests.servers_plugin import private_or_skip
from unpoison.alerting.panels import ROWS
from unpoison.testing.isolation.diary import wait_until

pytestmark = [pytest.mark.long, pytest.mark.servers("prometheus"), pytest.mark.timeout(300)]

PATIENCE = 60
LOOKED_AT = 2 * 60
"""Seconds after which a consumer has seen how long a message had waited: it looks once a minute."""
CHOSEN = ("--depth", "20", "--oldest", "1s")
EXPECTED = {
    ("UnpoisonDeadLettersGrowing", "orders"),
    ("UnpoisonManyDeadLetters", "orders"),
    ("UnpoisonPermanentErrors", "orders"),
    ("UnpoisonWorkersCrashing", "orders"),
    ("UnpoisonAdmissionPaused", "imports"),
    ("UnpoisonOldMessages", "imports"),
    ("UnpoisonBreakerOpen", "mails"),
    ("UnpoisonSourcePaused", "mails"),
    ("UnpoisonPausedByOperator", "reports"),
}
NEVER = (
    "UnpoisonAttemptsOverLimit|UnpoisonStoreAway|UnpoisonDepthsUnknown|UnpoisonDLQNotWritable|UnpoisonRetention.+"
)  # fmt: skip


class Shop:
    """Consumers of four queues, all of them in trouble, one of a log, and the Prometheus that scrapes them."""

    def __init__(self, prometheus: Prometheus, folder, stack: ExitStack) -> None:
        self.prometheus, self.folder, self._stack = prometheus, folder, stack
        self.url = f"sqlite:///{folder}/shop.db"
        self.consumers: list[ConsumerProcess] = []
        self.of_log: list[ConsumerProcess] = []

    def call(self, *arguments, stdin=""):
        done = unpoison(*arguments, cwd=self.folder, stdin=stdin.encode(), SHOP_URL=self.url, UNPOISON_URL=self.url)
        assert done.code == 0, done.err
        return done.text

    def publish(self, source, *bodies):
        self.call("publish", self.url, source, "--lines", stdin="".join(f'"{body}"\n' for body in bodies))

    def consume(self):
        """One more process. It is scraped from its first moment on."""
        consumer = ConsumerProcess("poisoned_shop:app", "--metrics-port", "0", cwd=self.folder, SHOP_URL=self.url)
        self.consumers.append(self._stack.enter_context(consumer))
        self._scrape()

    def consume_log(self, url):
        """Of Kafka more is known than of SQLite: how long it keeps messages, and how far behind its end a group is."""
        publish = ("publish", url, "events", "--lines")
        done = unpoison(*publish, cwd=self.folder, stdin=b"61\n" + b"20\n" * 20)
        assert done.code == 0, done.err
        consumer = ConsumerProcess("poisoned_log:app", "--metrics-port", "0", cwd=self.folder, LOG_URL=url)
        self.of_log.append(self._stack.enter_context(consumer))
        self._scrape()
        self.wait_for('unpoison_consumer_lag{queue="events"} == 21', "not all that waits in the log is seen:")

    def _scrape(self):
        self.prometheus.scrape([f"127.0.0.1:{each.port}" for each in (*self.consumers, *self.of_log)])

    def values(self, query):
        return self.prometheus.api("query", query=query)["result"]

    def wait_for(self, query, otherwise="", patience=PATIENCE):
        wait_until(lambda: self.values(query), lambda: f"{otherwise} {query} has no result: {self.values('ALERTS')}", patience)


def rules(text):
    """All at once: no `for`, and who is gone is gone at once."""
    document = yaml.safe_load(text)
    for rule in document["groups"][0]["rules"]:
        if "for" in rule:
            rule["for"] = "0s"
        if rule.get("alert") == "UnpoisonNoConsumer":
            rule["expr"] = rule["expr"].replace("[5m]", "[3s]")
    return yaml.safe_dump(document)


@pytest.fixture(scope="module")
def shop(tmp_path_factory, kafka) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    for app in ("poisoned_shop.py", "poisoned_log.py"):
        shutil.copy(Path(__file__).with_name(app), folder)
    with ExitStack() as stack:
        prometheus = stack.enter_context(private_or_skip("prometheus"))
        assert isinstance(prometheus, Prometheus)
        made = Shop(prometheus, folder, stack)
        prometheus.load_rules(rules(made.call("alerts", *CHOSEN)))
        made.consume_log(kafka.fresh())
        made.consume()
        made.wait_for("count(dlq_depth == 0) == 5", "no depth of an empty DLQ was scraped:")
        made.publish(
            "orders", *(f"fine {n}" for n in range(300)), *(f"wrong {n}" for n in range(25)), *(f"die {n}" for n in range(4))
        )
        made.publish("imports", *(f"wrong {n}" for n in range(200)))
        made.publish("mails", *(f"down {n}" for n in range(40)))
        made.publish("reports", "later")
        made.call("pause", "reports", "--reason", "stocktaking")
        made.wait_for('poison_pills_total{queue="orders", classification="crash"} == 4')
        made.wait_for('poison_pills_total{queue="orders", classification="permanent"} == 25')
        made.consume()  # it reads depths at once, and the first one only after a while
        yield made


def firing(shop):
    return {
        (each["metric"]["alertname"], each["metric"]["queue"]) for each in shop.values('ALERTS{alertstate="firing", queue!=""}')
    }


def test_what_is_wrong_is_told_and_nothing_else(shop):
    wait_until(lambda: firing(shop) >= EXPECTED, lambda: f"missing: {EXPECTED - firing(shop)}", PATIENCE)
    assert shop.values(f'ALERTS{{alertname=~"{NEVER}"}}') == []
    told = [each for each in shop.prometheus.api("alerts")["alerts"] if "queue" in each["labels"]]
    alerts = {(each["labels"]["alertname"], each["labels"]["queue"]): each for each in told}
    assert alerts["UnpoisonBreakerOpen", "mails"]["labels"]["dependency"] == "billing"
    assert alerts["UnpoisonWorkersCrashing", "orders"]["labels"]["kind"] == "crash"
    many = alerts["UnpoisonManyDeadLetters", "orders"]
    assert (many["annotations"]["summary"], many["labels"]["severity"]) == ("orders: 29 dead letters", "page")


def test_two_consumers_are_not_twice_as_many_letters(shop):
    shop.wait_for('count(dlq_depth{queue="orders"} == 29) == 2')
    (found,) = shop.values('sum(max by (job, queue) (dlq_depth{queue="orders"}))')
    assert found["value"][1] == "29"


QUERIES = {
    f"{panel.title}: {query.legend or at}": asked_by_grafana(query.expression)
    for _, panels in ROWS
    for panel in panels
    for at, query in enumerate(panel.queries)
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_panel_has_data(shop, name):
    shop.wait_for(QUERIES[name], patience=LOOKED_AT + PATIENCE if "retention" in QUERIES[name] else PATIENCE)


def test_when_all_consumers_are_gone_that_is_told(shop):
    for consumer in shop.consumers:
        consumer.process.kill()
        consumer.process.wait()
    for queue in ("orders", "imports", "mails", "reports"):
        shop.wait_for(f'ALERTS{{alertname="UnpoisonNoConsumer", alertstate="firing", queue="{queue}"}}')
