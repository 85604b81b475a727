"""/healthz, /readyz, the heartbeat file and systemd over the whole life of a real `unpoison run`."""

import os
import signal
import socket
import sys
from contextlib import closing, suppress
from urllib.request import urlopen

import pytest

from tests.e2e.command_line import in_this_process, unpoison
from tests.e2e.consumer_process import REFUSED, ConsumerProcess, below, environment_of
from unpoison import App
from unpoison.testing.isolation.diary import wait_until

URL = "sqlite:///shop.db"
SHOP = """
import os, socket, time
from pathlib import Path
from unpoison import App

app = App({url!r}, metrics_port=0)

@app.consumer("orders", concurrency=1)
def ship(order: str) -> None:
    if order.startswith("piano"):
        raise KeyError(order)
    if order.startswith("pay"):
        socket.create_connection(("127.0.0.1", 1))
    if order == "wait":
        Path("waiting").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    Path(order).touch()
"""
HANGING = """
import sys, time
from pathlib import Path
from unpoison.cli.main import main
from unpoison.flow.consumer import Consumer
from unpoison.observing import health

turn, health.HUNG_AFTER = Consumer.turn, 2.5  # an idle loop turns once a second

def hangs_while_the_file_is_there(self):
    while Path("hang").exists():
        time.sleep(0.01)
    return turn(self)

Consumer.turn = hangs_while_the_file_is_there
main(sys.argv[1:])
"""


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP.format(url=URL))
    return tmp_path


def publish(folder, *orders, url=None, source="orders"):
    with closing(App(url or f"sqlite:///{folder}/shop.db")) as app:
        app.publish_many(source, orders)


def test_a_planned_stop_is_not_ready_and_healthy_until_the_port_closes(shop):
    with ConsumerProcess("shop:app", cwd=shop) as consumer:
        assert consumer.ready(200)["source"] == "orders"
        publish(shop, "wait")
        wait_until((shop / "waiting").exists, lambda: "the handler has not started")
        consumer.process.terminate()
        consumer.ready(503, "draining")
        (shop / "go").touch()
        assert consumer.process.wait(60) == 0
        assert consumer.ask("/readyz")[0] == REFUSED


def test_a_pause_by_a_person_keeps_it_ready(shop):
    with ConsumerProcess("shop:app", cwd=shop) as consumer:
        consumer.ready(200)
        assert in_this_process("pause", "orders", "--url", URL, "--reason", "stocktaking", cwd=shop).code == 0
        assert "It is paused by" in consumer.ready(200, "paused")["reason"]
        assert in_this_process("resume", "orders", "--url", URL, cwd=shop).code == 0
        consumer.ready(200)


def test_too_many_dead_letters_make_it_unready_and_an_outage_does_not(shop):
    with ConsumerProcess("shop:app", cwd=shop) as consumer:
        publish(shop, *[f"pay {n}" for n in range(100)])
        assert "127.0.0.1:1 is down" in consumer.ready(200, "paused")["reason"]
        assert consumer.stop() == 0
    (shop / "shop.db").unlink()
    with ConsumerProcess("shop:app", cwd=shop) as consumer:
        publish(shop, *[f"piano {n}" for n in range(200)])
        reason = consumer.ready(503, "paused")["reason"]
        assert "were to become dead letters" in reason
        assert "KeyError" not in reason


def test_it_is_not_ready_while_its_broker_is_away_at_the_start_and_later(shop, private_server):
    server = private_server("redis")
    (shop / "shop.py").write_text(SHOP.format(url=server.fresh()))
    server.kill_hard()
    with ConsumerProcess("shop:app", cwd=shop) as consumer:
        assert "Connection refused" in consumer.ready(503, "no broker")["reason"]
        server.start()
        consumer.ready(200)
        server.kill_hard()
        assert consumer.ready(503, "no broker")["since"]
        server.start()
        consumer.ready(200)
        assert consumer.stop() == 0


def test_it_is_not_ready_without_a_process_that_starts_workers(shop):
    with ConsumerProcess("shop:app", cwd=shop) as consumer:
        consumer.ready(200)
        (template,) = [
            pid for pid in below(consumer.process.pid, "programs.template") if os.getpgid(pid) == pid and os.getsid(pid) != pid
        ]
        os.kill(template, signal.SIGSTOP)
        assert f"kill -CONT {template}" in consumer.ready(503, "no workers")["reason"]
        os.kill(template, signal.SIGCONT)
        consumer.ready(200)


def test_it_is_not_ready_while_its_workers_cannot_start(shop):
    hook = "@app.on_worker_start\ndef connect():\n    if not Path('go').exists(): raise ValueError('no licence')\n"
    (shop / "shop.py").write_text(SHOP.format(url=URL) + hook)
    with ConsumerProcess("shop:app", cwd=shop) as consumer:
        wait_until(lambda: "no licence" in consumer.ready(503, "no workers")["reason"], lambda: "the error is not told")
        (shop / "go").touch()
        consumer.ready(200)


def test_a_hung_consumer_is_told_with_its_stack_and_gives_no_heartbeat(shop):
    (shop / "hanging.py").write_text(HANGING)
    alive = shop / "alive"
    program = (sys.executable, "hanging.py")
    with ConsumerProcess("shop:app", "--heartbeat-file", "alive", cwd=shop, program=program) as consumer:
        consumer.ready(200)
        assert alive.exists()
        (shop / "hang").touch()
        wait_until(lambda: consumer.ask("/healthz")[0] == 503, lambda: "it does not count as hung")
        (told,) = consumer.ask("/healthz")[1]["sources"]
        assert (told["source"], told["state"]) == ("orders", "hung")
        assert "since" in told
        assert consumer.ask("/readyz")[0] == 503
        assert "hangs_while_the_file_is_there" in consumer.wait_for("hung")["message"]
        os.utime(alive, (0, 0))
        (shop / "hang").unlink()
        consumer.wait_for("turns-again")
        wait_until(lambda: alive.stat().st_mtime > 0, lambda: "the heartbeat file is not renewed")
        assert consumer.ask("/healthz")[0] == 200
        assert consumer.stop() == 0
    assert not alive.exists()


def test_a_heartbeat_file_that_cannot_be_written_stops_nothing(shop):
    with ConsumerProcess("shop:app", "--heartbeat-file", "no/such/folder", cwd=shop) as consumer:
        assert "No such file or directory" in consumer.wait_for("heartbeat-failed")["message"]
        publish(shop, "book")
        wait_until((shop / "book").exists, lambda: "the message was not consumed")
        assert consumer.stop() == 0


def test_two_apps_share_one_port(shop):
    (shop / "billing.py").write_text(SHOP.format(url=URL).replace(", metrics_port=0", "").replace("orders", "bills"))
    with ConsumerProcess("shop:app", "billing:app", cwd=shop) as consumer:
        assert consumer.ready(200, source=1)["source"] == "bills"
        assert len(consumer.ask("/readyz")[1]["sources"]) == 2
        assert len(consumer.logged("listen")) == 1
        with urlopen(f"http://127.0.0.1:{consumer.port}/metrics") as response:
            assert b'unpoison_consumer_running{queue="bills"} 1.0' in response.read()


def test_a_port_that_is_taken_is_said_at_once(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = unpoison("run", "shop:app", "--metrics-port", str(port), cwd=shop)
    assert ended.code == 1
    assert ended.err.startswith(
        f"Error: Metrics and health cannot be served at '127.0.0.1', port {port}: Address already in use."
    )
    assert not (shop / "shop.db").exists()


# systemd


@pytest.fixture
def manager(tmp_path):
    """A socket that stands for systemd."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


def heard_until(manager, text):
    heard = []
    while not any(text in each for each in heard):
        heard.append(manager.recv(4_096).decode())
    return heard


def test_systemd_hears_when_it_is_ready_turns_and_stops(shop, manager):
    variables = {"NOTIFY_SOCKET": str(shop / "notify"), "WATCHDOG_USEC": "400000"}
    with ConsumerProcess("shop:app", cwd=shop, **variables) as consumer:
        assert "STATUS=Consuming orders." in heard_until(manager, "READY=1")[-1]
        assert heard_until(manager, "WATCHDOG=1")
        assert heard_until(manager, "WATCHDOG=1")
        below_it = below(consumer.process.pid)
        assert len(below_it) >= 2
        for pid in below_it:
            with suppress(FileNotFoundError):
                assert environment_of(pid).keys().isdisjoint({*variables, "WATCHDOG_PID"})
        assert in_this_process("pause", "orders", "--url", URL, "--reason", "stocktaking", cwd=shop).code == 0
        heard_until(manager, "STATUS=orders: paused. It is paused by")
        consumer.process.terminate()
        heard_until(manager, "STOPPING=1")
        assert consumer.process.wait(60) == 0
