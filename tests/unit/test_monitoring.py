"""Where is a run seen from outside, and does it look at its consumers as it should?"""

import logging
import os
import sys
from contextlib import closing
from http.client import HTTPConnection

import prometheus_client
import pytest

from unpoison import App
from unpoison.decide.options import Settings, settings_from
from unpoison.errors import ConfigError
from unpoison.observing import health
from unpoison.observing.health import Phase, SourceHealth
from unpoison.observing.monitoring import Exposed, Monitoring, exposed_by
from unpoison.testing.running import Journal, Running

LOCAL = "127.0.0.1"


def app(**settings):
    return Settings("memory://", **settings)


@pytest.mark.parametrize(
    ("apps", "given", "expected"),
    [
        ([app(), app()], Exposed(), Exposed(None, LOCAL, None)),
        ([app(metrics_port=9464), app()], Exposed(), Exposed(9464, LOCAL, None)),
        ([app(metrics_port=0)], Exposed(), Exposed(0, LOCAL, None)),
        ([app(metrics_port=9464, metrics_host="::"), app()], Exposed(), Exposed(9464, "::", None)),
        ([app(metrics_port=9464), app(metrics_port=9465)], Exposed(0), Exposed(0, LOCAL, None)),
        ([app(metrics_host="0.0.0.0")], Exposed(9464), Exposed(9464, "0.0.0.0", None)),
        ([app(metrics_port=9464, metrics_host="::")], Exposed(host="10.0.0.1"), Exposed(9464, "10.0.0.1", None)),
        ([app(heartbeat_file="/tmp/a"), app(heartbeat_file="/tmp/a")], Exposed(), Exposed(None, LOCAL, "/tmp/a")),
        ([app(heartbeat_file="/tmp/a"), app()], Exposed(heartbeat_file="/tmp/b"), Exposed(None, LOCAL, "/tmp/b")),
    ],
)
def test_all_apps_of_a_run_share_one_place_and_what_is_given_wins(apps, given, expected):
    assert exposed_by(apps, given) == expected


@pytest.mark.parametrize(
    ("apps", "given", "says"),
    [
        ([app(metrics_port=1), app(metrics_port=2)], Exposed(), "different values for metrics_port: 1, 2.*--metrics-port"),
        (
            [app(metrics_port=1), app(metrics_port=1, metrics_host="::")],
            Exposed(),
            "metrics_host: '127.0.0.1', '::'.*--metrics-host",
        ),
        ([app(heartbeat_file="a"), app(heartbeat_file="b")], Exposed(), "heartbeat_file: 'a', 'b'.*--heartbeat-file"),
        ([app()], Exposed(host="::"), "metrics_host is '::', but there is no port"),
    ],
)
def test_a_conflict_is_an_error(apps, given, says):
    with pytest.raises(ConfigError, match=says):
        exposed_by(apps, given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics_port": 65_536},
        {"metrics_port": -1},
        {"metrics_port": True},
        {"metrics_port": "9464"},
        {"metrics_host": ""},
        {"metrics_host": 7},
        {"heartbeat_file": ""},
        {"heartbeat_file": 7},
    ],
)
def test_values_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
        App("memory://", **wrong)


def test_they_come_from_the_environment_too():
    environment = {
        "UNPOISON_METRICS_PORT": "9464",
        "UNPOISON_METRICS_HOST": "0.0.0.0",
        "UNPOISON_HEARTBEAT_FILE": "/tmp/alive",
    }
    settings = settings_from({"url": "memory://"}, environment)
    assert (settings.metrics_port, settings.metrics_host, settings.heartbeat_file) == (9464, "0.0.0.0", "/tmp/alive")
    assert settings_from({"url": "memory://", "metrics_port": 0}, environment).metrics_port == 0


def test_nothing_is_watched_that_nobody_asked_for(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monitoring = Monitoring(Exposed(), [])
    assert monitoring.observers == []
    monitoring.start()
    assert not monitoring._thread.is_alive()
    monitoring.close()


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """A consumer of 'orders' whose loop the test holds, with a heartbeat file; and its monitoring, which looks when told to."""
    monkeypatch.setattr("unpoison.observing.heartbeat.TOUCH_EVERY", 0.0)
    source = SourceHealth("orders")
    source.enters(Phase.RUNNING)
    return source, Monitoring(Exposed(heartbeat_file=str(tmp_path / "alive")), [source]), tmp_path / "alive"


def renewed(monitoring, path):
    os.utime(path, (0, 0))
    monitoring._look()
    return path.stat().st_mtime > 0


def test_while_a_loop_hangs_no_heartbeat_is_given_and_its_stack_is_logged_once(hanging, caplog):
    source, monitoring, path = hanging
    monitoring._look()
    assert renewed(monitoring, path)
    source.last_turn.at -= health.HUNG_AFTER + 60
    assert not renewed(monitoring, path)
    assert not renewed(monitoring, path)
    assert [record.event for record in caplog.records] == ["hung"]
    assert "The consumer of 'orders' hangs: its loop has not turned for 3 min" in caplog.text
    assert "in test_while_a_loop_hangs_no_heartbeat" in caplog.text
    source.last_turn.note()
    assert renewed(monitoring, path)
    assert [record.event for record in caplog.records] == ["hung", "turns-again"]
    monitoring.close()
    assert not path.exists()


def test_a_fault_of_its_own_ends_nothing(hanging, caplog, monkeypatch):
    _, monitoring, _ = hanging
    monkeypatch.setattr(monitoring, "_tell_of_hung", lambda conditions: 1 / 0)
    with closing(monitoring):
        with Journal() as journal:
            monitoring.start()
            journal.wait_for("monitoring-fault")
        assert monitoring._thread.is_alive()


# In the process of the application


def asked(port, path):
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


@pytest.mark.parametrize("isolation", ["thread", "inline"])
def test_consumers_without_isolation_answer_until_they_end(isolation, tmp_path):
    app = App("memory://", metrics_port=0, heartbeat_file=str(tmp_path / "alive"))
    statuses = []

    @app.consumer("orders", isolation=isolation)
    def handle(order: int) -> None:
        statuses.extend(asked(port, path) for path in ("/healthz", "/readyz", "/metrics"))
        statuses.append((tmp_path / "alive").exists())

    with Journal() as journal, Running(app) as running:
        port = running.run._monitoring._server.port
        assert f"http://127.0.0.1:{port}/healthz" in _only(journal, "listen")
        app.publish("orders", 1)
        journal.wait_for("start")
        while len(statuses) != 4:
            running._thread.join(0.01)
    assert statuses[:3] == [200, 200, 200]
    assert statuses[3]
    with pytest.raises(ConnectionRefusedError):
        asked(port, "/healthz")
    assert not (tmp_path / "alive").exists()


@pytest.mark.parametrize("is_installed", [True, False])
def test_without_the_package_for_metrics_the_port_says_what_to_install_and_serves_the_rest(is_installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", prometheus_client if is_installed else None)
    app = App("memory://", metrics_port=0)
    app.consumer("orders")(print)
    with Journal() as journal, Running(app) as running:
        journal.wait_for("start")
        port = running.run._monitoring._server.port
        statuses = [asked(port, path) for path in ("/healthz", "/metrics")]
    assert statuses == [200, 200 if is_installed else 501]
    assert ("pip install 'unpoison[metrics]'" in _only(journal, "listen")) is not is_installed


def _only(journal, event):
    journal.wait_for(event)
    (line,) = journal.of(event)
    return line


def test_a_run_that_cannot_begin_says_so_before_anything_is_consumed(caplog):
    first = App("memory://", metrics_port=0)
    first.consumer("orders")(print)
    with caplog.at_level(logging.INFO, "unpoison"), Running(first) as running:
        second = App("memory://", metrics_port=running.run._monitoring._server.port)
        second.consumer("emails")(print)
        with pytest.raises(ConfigError, match="Address already in use"):
            second.run()
