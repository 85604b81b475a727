"""A failure is attributed to the server that its client names, or else to its type and the last place in the user's code."""

import asyncio
import smtplib
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import asyncpg
import botocore.session
import httpx
import psycopg
import pymongo
import pymysql
import pytest
import redis
import requests
import urllib3
from botocore.config import Config

from tests.unit import classifying
from tests.unit.classifying import raised
from unpoison import RetryLater
from unpoison.classify.dependency import dependency_of
from unpoison.store.rows import storable

closed_port = pytest.fixture(classifying.closed_port)


@pytest.fixture(scope="module")
def failing_server():
    class Failing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(503)

        def log_message(self, *arguments):
            """Keep the test's output quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def with_requests(port):
    requests.get(f"http://user:secret@127.0.0.1:{port}/orders/7", timeout=5).raise_for_status()


def with_httpx(port):
    httpx.get(f"http://127.0.0.1:{port}/orders/7").raise_for_status()


def with_aiohttp(port):
    async def get():
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(f"http://127.0.0.1:{port}/orders/7"):
            pass

    asyncio.run(get())


def with_urllib3(port):
    urllib3.PoolManager(retries=False).request("GET", f"http://127.0.0.1:{port}/orders/7")


def with_botocore(port):
    client = botocore.session.Session().create_client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="x",
        aws_secret_access_key="y",
        config=Config(retries={"total_max_attempts": 1}),
    )
    client.list_queues()


def with_redis(port):
    redis.Redis("127.0.0.1", port, retry=None).ping()


def with_psycopg(port):
    psycopg.connect(f"postgresql://shop@127.0.0.1:{port}/shop")


def with_pymongo(port):
    with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=10) as client:
        client.admin.command("ping")


CLIENTS = [with_requests, with_httpx, with_aiohttp, with_urllib3, with_botocore, with_redis, with_psycopg, with_pymongo]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_is_away_is_named_by_its_address(closed_port, client):
    assert dependency_of(raised(client, closed_port)) == (f"127.0.0.1:{closed_port}", True)


@pytest.mark.parametrize("client", [with_requests, with_httpx, with_aiohttp])
def test_a_server_that_answers_with_an_error_is_named_too(failing_server, client):
    assert dependency_of(raised(client, failing_server)) == (f"127.0.0.1:{failing_server}", True)


def test_an_exception_of_the_users_own_is_attributed_to_what_it_was_raised_from(closed_port):
    def ship():
        try:
            with_requests(closed_port)
        except requests.ConnectionError as error:
            raise RuntimeError("cannot ship") from error

    assert dependency_of(raised(ship)) == (f"127.0.0.1:{closed_port}", True)


def test_what_was_handled_when_another_error_was_raised_on_purpose_is_not_looked_at(closed_port):
    def ship():
        try:
            with_requests(closed_port)
        except requests.ConnectionError:
            raise RuntimeError("cannot ship") from None

    assert dependency_of(raised(ship)) == ("RuntimeError in test_dependency.py:ship", False)


def with_a_socket(port):
    socket.create_connection(("127.0.0.1", port), timeout=5)


def with_smtplib(port):
    smtplib.SMTP("127.0.0.1", port, timeout=5)


def with_urllib(port):
    urllib.request.urlopen(f"http://127.0.0.1:{port}/orders/7", timeout=5)


def with_asyncio(port):
    asyncio.run(asyncio.open_connection("127.0.0.1", port))


def with_asyncpg(port):
    asyncio.run(asyncpg.connect(f"postgresql://shop:secret@127.0.0.1:{port}/shop"))


def with_pymysql(port):
    pymysql.connect(host="127.0.0.1", port=port, user="shop", password="secret")


SILENT = [with_a_socket, with_smtplib, with_urllib, with_asyncio, with_asyncpg, with_pymysql]


@pytest.mark.parametrize("client", SILENT)
def test_where_an_exception_does_not_name_the_server_the_attempt_to_connect_does(closed_port, client):
    assert dependency_of(raised(client, closed_port)) == (f"127.0.0.1:{closed_port}", True)


def test_a_unix_socket_and_a_function_of_the_same_name_are_not_taken_for_an_address():
    def create_connection(host, port):
        raise OSError("no")

    def connect():
        with socket.socket(socket.AF_UNIX) as one:
            one.connect("/nowhere")

    assert dependency_of(raised(create_connection, "billing", 80)) == ("OSError in test_dependency.py:create_connection", False)
    assert dependency_of(raised(connect)) == ("FileNotFoundError in test_dependency.py:connect", False)


def test_a_bare_error_is_attributed_to_its_type_and_the_last_place_in_the_users_code(closed_port):
    def connect():
        with socket.socket() as one:
            one.connect(("127.0.0.1", closed_port))

    assert dependency_of(raised(connect)) == ("ConnectionRefusedError in test_dependency.py:connect", False)


def test_an_app_that_is_installed_as_a_package_has_places_too():
    site = "/app/.venv/lib/python3.12/site-packages"
    library, app = {}, {}
    exec(compile("def post(): raise TimeoutError", f"{site}/client/api.py", "exec"), library)
    exec(compile("def ship(post): post()", f"{site}/shop/orders.py", "exec"), app)
    error = raised(app["ship"], library["post"])
    error.__traceback__ = error.__traceback__.tb_next  # without the frame of the test
    assert dependency_of(error) == ("TimeoutError in orders.py:ship", False)


def test_an_error_that_was_never_raised_has_only_its_type():
    assert dependency_of(TimeoutError()) == ("TimeoutError", False)


@pytest.mark.parametrize(
    ("given", "name"), [(" mail  of\nada ", "mail of ada"), ("a\0b", "a\ufffdb"), ("\ud800", "?"), ("x" * 999, "x" * 200)]
)
def test_what_the_handler_names_is_one_line_that_every_store_takes_as_it_is(given, name):
    assert dependency_of(RetryLater(after=1, dependency=given)) == (name, True)
    assert storable([name]) == [name], "or the fleet would know it by another name"


def test_an_exception_that_raises_when_it_is_looked_at_does_no_harm():
    class Hostile(requests.RequestException):
        @property
        def request(self):
            raise SystemExit

        @request.setter
        def request(self, value):
            """It is set by its base."""

    name, is_named = dependency_of(raised(lambda: (_ for _ in ()).throw(Hostile("x"))))
    assert "Hostile" in name
    assert not is_named
