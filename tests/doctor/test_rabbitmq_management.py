"""To whom does the doctor give the password of the management API? To the server that the URL names, and to nobody else."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.doctor.rabbitmq_vhost import VirtualHost
from unpoison.brokers.rabbitmq.doctor import known_sources
from unpoison.brokers.rabbitmq.doctor.server import of_alarms
from unpoison.brokers.rabbitmq.management import Management, Unanswered
from unpoison.brokers.rabbitmq.url import address
from unpoison.errors import ConfigError


@contextmanager
def serving(code=200, body=b"{}", **headers):
    """A web server that gives one answer; yields its address and what it was asked."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Nothing is to be printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asking(management, url="amqp://shop:secret@localhost/v"):
    return Management(address(f"{url}?management={management}"))


def test_it_asks_with_the_login_of_the_url_or_with_one_of_its_own():
    with serving(body=b'{"a": 1}') as (place, asked):
        assert asking(place).get("overview") == {"a": 1}
        asking(place.replace("//", "//on%40call:p%2Fw@")).get("x")
    assert asked == [("/api/overview", "Basic c2hvcDpzZWNyZXQ="), ("/api/x", "Basic b25AY2FsbDpwL3c=")]


def test_where_it_is_looked_for_when_nothing_is_said():
    assert Management(address("amqp://h/v")).shown == "http://h:15672"
    assert Management(address("amqps://h/v")).shown == "https://h:15671"
    assert Management(address("amqp://[::1]/v")).shown == "http://[::1]:15672"


def test_it_does_not_follow_elsewhere():
    with serving() as (elsewhere, asked), serving(302, Location=elsewhere) as (place, _):
        with pytest.raises(Unanswered, match="answered 302"):
            asking(place).get("overview")
        assert asked == []


def test_it_goes_through_no_proxy(monkeypatch):
    with serving() as (proxy, asked), serving() as (place, direct):
        monkeypatch.setenv("http_proxy", proxy)
        asking(place).get("overview")
        assert (len(asked), len(direct)) == (0, 1)


@pytest.mark.parametrize(
    ("code", "body", "says"),
    [
        (401, b'{"error": "not_authorised", "reason": "Login failed"}', "refuses user 'shop': Login failed"),
        (401, b"<html>", "refuses user 'shop'"),
        (500, b"", "answered 500"),
        (200, b"<html>a web page</html>", "does not answer as the management API does"),
        (503, b"Service Unavailable", "does not answer as the management API does"),
    ],
)
def test_what_is_no_answer_is_said_in_one_sentence(code, body, says):
    with serving(code, body) as (place, _), pytest.raises(Unanswered, match=says) as raised:
        asking(place).get("overview")
    assert "secret" not in str(raised.value)


def test_what_is_not_there_is_none_and_an_alarm_is_an_answer():
    with serving(404) as (place, _):
        assert asking(place).get("exchanges/v/dlx") is None
    with serving(503, json.dumps({"alarms": []}).encode()) as (place, _):
        assert asking(place).get("health/checks/alarms") == {"alarms": []}


def test_an_alarm_says_what_is_short_and_where():
    alarms = [{"node": "rabbit@a", "resource": "memory"}, {"node": "rabbit@b", "resource": "disk space"}]
    with serving(503, json.dumps({"status": "failed", "alarms": alarms}).encode()) as (place, _):
        memory, disk = of_alarms(asking(place))
    assert (memory.name, disk.name) == ("memory-alarm", "disk-alarm")
    assert "on rabbit@a." in memory.problem
    assert "on rabbit@b:" in disk.problem


def test_another_server_at_the_usual_place_is_not_believed(rabbitmq):
    with VirtualHost(rabbitmq) as vhost, serving(body=b'{"cluster_name": "elsewhere"}') as (place, _):
        seen = vhost.found(url=f"{vhost.bare}?management={place}")
    assert set(seen) == {"cannot-look"}
    assert "another server answers: 'elsewhere' and not " in seen["cannot-look"].problem


def test_without_the_management_api_the_source_has_to_be_named(rabbitmq):
    with VirtualHost(rabbitmq) as vhost, pytest.raises(ConfigError) as raised:
        known_sources(f"{vhost.bare}?management=http://127.0.0.1:1")
    assert "only RabbitMQ's management API can tell" in str(raised.value)
    assert "Name the source with --source NAME" in str(raised.value)
