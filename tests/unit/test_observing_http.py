"""Does the port answer, whoever else is connected to it?"""

import logging
import socket
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from unpoison.errors import ConfigError
from unpoison.observing import http
from unpoison.observing.http import Answer, HttpServer
from unpoison.testing.isolation.diary import wait_until

LARGE = 4_000_000


def broken(accept):
    raise KeyError(accept)


ROUTES = {
    "/hello": lambda accept: Answer(HTTPStatus.OK, accept.encode(), "text/plain"),
    "/large": lambda accept: Answer(HTTPStatus.OK, bytes(LARGE)),
    "/broken": broken,
}


@contextmanager
def serving(host="127.0.0.1", port=0):
    server = HttpServer(host, port, ROUTES)
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server():
    with serving() as made:
        yield made


def ask(server, path="/hello", method="GET", body=None, **headers):
    with closing(HTTPConnection(server.host, server.port, timeout=30)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.headers)


def sent(server, request):
    """The whole answer to these bytes."""
    with socket.create_connection((server.host, server.port), 30) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65_536), b""))


def test_it_answers_get_and_head_and_says_nothing_about_itself(server):
    status, body, headers = ask(server, "/hello?verbose=1", Accept="text/html")
    assert (status, body) == (200, b"text/html")
    assert headers.keys() == {"Content-Type", "Content-Length", "Cache-Control", "X-Content-Type-Options", "Connection"}
    assert ask(server, method="HEAD", Accept="text/html") == (200, b"", headers)


def test_everything_else_is_refused(server):
    assert ask(server, "/")[0] == ask(server, "/hello/")[0] == ask(server, "/../etc/passwd")[0] == 404
    status, _, headers = ask(server, method="POST", body=b"x" * 1_000_000)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert sent(server, b"GET /hello HTTP/1.1\r\nX: " + b"x" * 20_000).startswith(b"HTTP/1.1 431 ")
    for garbage in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\xff\r\n\r\n", b"\r\n\r\n", b"GET  /hello\r\n\r\n"):
        assert sent(server, garbage).startswith(b"HTTP/1.1 400 ")
    assert ask(server)[0] == 200


def test_a_request_may_come_byte_by_byte(server):
    with socket.create_connection((server.host, server.port), 30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /hello HTTP/1.0\r\naccept: a\r\nAccept: b\r\n\r\n":
            client.sendall(bytes([byte]))
        assert b"".join(iter(lambda: client.recv(65_536), b"")).endswith(b"\r\n\r\na,b")


def test_a_thousand_requests_leave_nothing_behind(server):
    for _ in range(1_000):
        assert ask(server)[0] == 200
    wait_until(lambda: not server._connections, lambda: f"{len(server._connections)} connections are left")


def test_clients_that_say_nothing_or_read_nothing_hold_up_nobody(server):
    with ExitStack() as stack:
        for n in range(200):
            client = stack.enter_context(socket.create_connection((server.host, server.port), 30))
            client.sendall((b"", b"GET /hello HTTP/1.1\r\nX: ", b"GET /large HTTP/1.1\r\n\r\n")[n % 3])
            if n % 20 == 0:
                assert ask(server)[0] == 200
        assert ask(server)[0] == 200
        wait_until(lambda: len(server._connections) <= http.MOST_CONNECTIONS, lambda: "too many connections are open")


def test_a_slow_client_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(http, "LIMIT", 0.05)
    with socket.create_connection((server.host, server.port), 30) as client:
        client.sendall(b"GET /hello")
        assert client.recv(1) == b""


def test_a_large_answer_arrives_whole(server):
    status, body, _ = ask(server, "/large")
    assert (status, len(body)) == (200, LARGE)


def test_a_fault_of_its_own_is_told_once_and_ends_nothing(server, caplog):
    with caplog.at_level(logging.ERROR, "unpoison"):
        for _ in range(3):
            status, body, _ = ask(server, "/broken")
            assert (status, b"KeyError" in body) == (500, False)
    assert len(caplog.records) == 1
    assert ask(server)[0] == 200


def test_a_port_that_is_taken_and_an_address_that_is_not_here_are_clear_errors(server):
    with pytest.raises(ConfigError, match=rf"port {server.port}: Address already in use\. So nothing is consumed\. Choose"):
        HttpServer("127.0.0.1", server.port, ROUTES)
    with pytest.raises(ConfigError, match=r"'192\.0\.2\.1', port 0: Cannot assign requested address"):
        HttpServer("192.0.2.1", 0, ROUTES)
    with pytest.raises(ConfigError, match=r"'no\.such\.host\.invalid', port 0: \w"):
        HttpServer("no.such.host.invalid", 0, ROUTES)
    with pytest.raises(ConfigError, match="served at"):
        HttpServer("a" * 100 + ".example", 0, ROUTES)


def test_once_closed_the_port_is_free_again():
    with serving() as first, socket.create_connection((first.host, first.port), 30):
        assert ask(first)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((first.host, first.port), 30)
    with serving(port=first.port) as second:
        assert ask(second)[0] == 200


def test_one_that_was_never_started_closes_too():
    HttpServer("127.0.0.1", 0, ROUTES).close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_means_both_kinds():
    with serving("::") as server:
        assert server.url == f"http://[::]:{server.port}"
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, server.port), 30) as client:
                client.sendall(b"GET /hello HTTP/1.1\r\n\r\n")
                assert client.recv(15) == b"HTTP/1.1 200 OK"
