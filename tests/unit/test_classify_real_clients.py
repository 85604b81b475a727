"""The classifier beside the real exceptions of the clients people use, raised by the clients themselves where that is cheap."""

import asyncio
import contextlib
import importlib
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import botocore.exceptions
import botocore.session
import grpc
import grpc.aio
import httpx
import jsonschema
import msgspec
import pydantic
import pytest
import requests
import urllib3
from botocore.config import Config

from tests.unit import classifying
from tests.unit.classifying import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, check, raised, table
from unpoison.classify.classifier import classify
from unpoison.classify.known_errors import KNOWN_ERRORS, WRAPPERS
from unpoison.classify.server_replies import ANSWERS

STATUSES = pytest.mark.parametrize(
    ("path", "expected", "wait"),
    [
        ("/404", PERMANENT, None),
        ("/409", PERMANENT, None),
        ("/408", TRANSIENT, None),
        ("/425", TRANSIENT, None),
        ("/500", TRANSIENT, None),
        ("/502", TRANSIENT, None),
        ("/503", TRANSIENT, None),
        ("/503?Retry-After=7", THROTTLED, 7.0),
        ("/429", THROTTLED, None),
        ("/429?Retry-After=30", THROTTLED, 30.0),
        ("/429?RateLimit-Reset=30", THROTTLED, 30.0),
        ("/429?Date=Wed, 21 Oct 2026 07:28:00 GMT&X-RateLimit-Reset=1792567740", THROTTLED, 60.0),
        ("/429?Date=Wed, 21 Oct 2026 07:28:00 GMT&Retry-After=Wed, 21 Oct 2026 07:29:00 GMT", THROTTLED, 60.0),
    ],
)


class Shop(BaseHTTPRequestHandler):
    """Answers /503?Retry-After=7 with that status and header; /cut hangs up, /loop leads to itself."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path.replace("%20", " "))
        if url.path == "/cut":
            self.close_connection = True
            return
        headers = dict(parse_qsl(url.query)) | ({"Location": "/loop"} if url.path == "/loop" else {})
        body = headers.pop("body", "<html>").encode()
        self.send_response_only(302 if url.path == "/loop" else int(url.path[1:]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, *arguments):
        """Keep the test's output quiet."""


@pytest.fixture(scope="module")
def shop():
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


closed_port = pytest.fixture(classifying.closed_port)
deaf_port = pytest.fixture(classifying.deaf_port)


def requests_get(url, **options):
    requests.get(url, timeout=options.get("timeout", 5)).raise_for_status()


@STATUSES
def test_requests_goes_by_status(shop, path, expected, wait):
    check(raised(requests_get, shop + path), expected, wait)


def test_requests_without_an_answer_is_transient(shop, closed_port, deaf_port):
    check(raised(requests_get, f"http://127.0.0.1:{closed_port}"), TRANSIENT)
    check(raised(requests_get, f"http://127.0.0.1:{deaf_port}", timeout=0.02), TRANSIENT)
    check(raised(requests_get, shop + "/cut"), TRANSIENT)


def test_requests_that_can_never_work_are_permanent(shop):
    check(raised(requests_get, shop + "/loop"), PERMANENT)
    for address in ("shop", "http://", "shop://x", "http://[x"):
        check(raised(requests_get, address), PERMANENT)
    check(raised(requests.get(shop + "/200", timeout=5).json), PERMANENT)


class Hostile(requests.HTTPError):
    """A user's subclass whose attribute raises once it is read."""

    response = property(lambda self: 1 / 0, lambda self, value: None)


@table(
    (requests.HTTPError("made without a response"), TRANSIENT),
    (requests.exceptions.ChunkedEncodingError(), TRANSIENT),
    (requests.exceptions.SSLError(), TRANSIENT),
    (requests.exceptions.RetryError(), TRANSIENT),
    (requests.exceptions.InvalidHeader(), PERMANENT),
    (requests.exceptions.StreamConsumedError(), BUG),
    (Hostile(), TRANSIENT),
)
def test_other_exceptions_of_requests(error, expected):
    check(error, expected)


def httpx_get(url, **options):
    httpx.get(url, timeout=options.get("timeout", 5), follow_redirects=options.get("follow", False)).raise_for_status()


@STATUSES
def test_httpx_goes_by_status(shop, path, expected, wait):
    check(raised(httpx_get, shop + path), expected, wait)


def test_httpx_without_an_answer_is_transient(shop, closed_port, deaf_port):
    check(raised(httpx_get, f"http://127.0.0.1:{closed_port}"), TRANSIENT)
    check(raised(httpx_get, f"http://127.0.0.1:{deaf_port}", timeout=0.02), TRANSIENT)
    check(raised(httpx_get, shop + "/cut"), TRANSIENT)


def test_httpx_that_can_never_work_is_permanent(shop):
    check(raised(httpx_get, shop + "/loop"), PERMANENT)
    check(raised(httpx_get, shop + "/loop", follow=True), PERMANENT)
    for address in ("shop://x", "http://\n"):
        check(raised(httpx_get, address), PERMANENT)
    check(raised(httpx.get(shop + "/200").json), PERMANENT)


@table((httpx.ResponseNotRead(), BUG), (httpx.DecodingError("gzip"), TRANSIENT), (httpx.LocalProtocolError("header"), PERMANENT))
def test_other_exceptions_of_httpx(error, expected):
    check(error, expected)


def aiohttp_get(url, *, timeout=5, read=None, status=True):
    async def get():
        limit = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url) as response:
            if status:
                response.raise_for_status()
            if read:
                await getattr(response, read)()

    asyncio.run(get())


@STATUSES
def test_aiohttp_goes_by_status(shop, path, expected, wait):
    check(raised(aiohttp_get, shop + path), expected, wait)


def test_aiohttp_without_an_answer_is_transient(shop, closed_port, deaf_port):
    check(raised(aiohttp_get, f"http://127.0.0.1:{closed_port}"), TRANSIENT)
    check(raised(aiohttp_get, f"http://127.0.0.1:{deaf_port}", timeout=0.02), TRANSIENT)
    check(raised(aiohttp_get, shop + "/cut"), TRANSIENT)


def test_aiohttp_that_can_never_work_is_permanent(shop):
    check(raised(aiohttp_get, shop + "/loop"), PERMANENT)
    for address in ("shop", "shop://x"):
        check(raised(aiohttp_get, address), PERMANENT)


def test_a_page_where_json_was_expected_is_permanent_unless_its_status_says_otherwise(shop):
    check(raised(aiohttp_get, shop + "/200", read="json"), PERMANENT)
    check(raised(aiohttp_get, shop + "/503", read="json", status=False), TRANSIENT)


@table(
    (aiohttp.ClientPayloadError(), TRANSIENT), (aiohttp.ServerDisconnectedError(), TRANSIENT), (aiohttp.ClientError(), TRANSIENT)
)
def test_other_exceptions_of_aiohttp(error, expected):
    check(error, expected)


def urllib3_get(url, **options):
    with urllib3.PoolManager() as pool:
        pool.request("GET", url, timeout=options.pop("timeout", 5), **options)


def test_urllib3_without_an_answer_is_transient(shop, closed_port, deaf_port):
    for retries in (False, 0):
        check(raised(urllib3_get, f"http://127.0.0.1:{closed_port}", retries=retries), TRANSIENT)
        check(raised(urllib3_get, f"http://127.0.0.1:{deaf_port}", timeout=0.02, retries=retries), TRANSIENT)
        check(raised(urllib3_get, shop + "/cut", retries=retries), TRANSIENT)
    check(raised(urllib3_get, shop + "/503", retries=urllib3.Retry(1, status_forcelist=[503])), TRANSIENT)


def test_urllib3_that_can_never_work_is_permanent():
    for address in ("http://[x", "shop://x"):
        check(raised(urllib3_get, address), PERMANENT)
    check(raised(urllib3.proxy_from_url, "shop://x"), PERMANENT)


def urlopen(url, **options):
    with contextlib.closing(urllib.request.urlopen(url.replace(" ", "%20"), timeout=options.get("timeout", 5))):
        pass


@STATUSES
def test_urllib_goes_by_status(shop, path, expected, wait):
    error = raised(urlopen, shop + path)
    check(error, expected, wait)
    error.close()


def test_urllib_without_an_answer_is_transient(shop, closed_port, deaf_port):
    check(raised(urlopen, f"http://127.0.0.1:{closed_port}"), TRANSIENT)
    check(raised(urlopen, f"http://127.0.0.1:{deaf_port}", timeout=0.02), TRANSIENT)
    check(raised(urlopen, shop + "/cut"), TRANSIENT)
    check(raised(urlopen, "file:///no/such/file"), PERMANENT)


@pytest.fixture(scope="module")
def dynamodb_session():
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    return session


def dynamodb(session, url):
    limits = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=0.1)
    return session.create_client("dynamodb", "eu-west-1", endpoint_url=url, config=limits)


@pytest.mark.parametrize(
    ("path", "code", "expected", "wait"),
    [
        ("/400", "ThrottlingException", THROTTLED, None),
        ("/400?Retry-After=3", "ProvisionedThroughputExceededException", THROTTLED, 3.0),
        ("/400", "RequestLimitExceeded", THROTTLED, None),
        ("/400", "RequestTimeout", TRANSIENT, None),
        ("/400", "TransactionConflictException", TRANSIENT, None),
        ("/400", "ConditionalCheckFailedException", PERMANENT, None),
        ("/400", "ResourceNotFoundException", PERMANENT, None),
        ("/500", "InternalServerError", TRANSIENT, None),
        ("/503", "SlowDown", THROTTLED, None),
        ("/503", "ServiceUnavailable", TRANSIENT, None),
        ("/503?Retry-After=3", "ServiceUnavailable", THROTTLED, 3.0),
    ],
)
def test_botocore_goes_by_error_code_and_then_by_status(shop, dynamodb_session, path, code, expected, wait):
    joint = "&" if "?" in path else "?"
    client = dynamodb(dynamodb_session, f"{shop}{path}{joint}body=" + '{"__type":"' + code + '","message":"m"}')
    with contextlib.closing(client):
        error = raised(client.describe_table, TableName="orders")
    assert isinstance(error, botocore.exceptions.ClientError)
    check(error, expected, wait)
    assert code in classify(error).rule


def test_botocore_without_an_answer_is_transient(dynamodb_session, closed_port, deaf_port):
    for port in (closed_port, deaf_port):
        with contextlib.closing(dynamodb(dynamodb_session, f"http://127.0.0.1:{port}")) as client:
            check(raised(client.describe_table, TableName="orders"), TRANSIENT)


def test_parameters_that_botocore_refuses_are_permanent(dynamodb_session, closed_port):
    with contextlib.closing(dynamodb(dynamodb_session, f"http://127.0.0.1:{closed_port}")) as client:
        check(raised(client.describe_table), PERMANENT)
        check(raised(client.describe_table, TableName=5), PERMANENT)


@table(
    (botocore.exceptions.ClientError({}, "GetItem"), UNKNOWN),
    (botocore.exceptions.ConnectionClosedError(endpoint_url="x"), TRANSIENT),
    (botocore.exceptions.ConnectTimeoutError(endpoint_url="x"), TRANSIENT),
    (botocore.exceptions.SSLError(endpoint_url="x", error="e"), TRANSIENT),
    (botocore.exceptions.NoCredentialsError(), TRANSIENT),
    (botocore.exceptions.UnknownServiceError(service_name="x", known_service_names="y"), UNKNOWN),
)
def test_other_exceptions_of_botocore(error, expected):
    check(error, expected)


@pytest.fixture(scope="module")
def grpc_address():
    def answer(request, context):
        code, _, trailer = request.partition(b":")
        if trailer:
            name, _, value = trailer.decode().partition("=")
            context.set_trailing_metadata([(name, bytes.fromhex(value) if name.endswith("-bin") else value)])
            request = code
        context.abort(grpc.StatusCode[request.decode()], "text") if request.isalpha() or b"_" in request else None
        return b"x" * int(request)

    methods = {"Ship": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[grpc.method_handlers_generic_handler("shop.Orders", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def grpc_call(address, request, timeout=5):
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 1_000)]) as channel:
        channel.unary_unary("/shop.Orders/Ship")(request, timeout=timeout)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("UNAVAILABLE", TRANSIENT),
        ("DEADLINE_EXCEEDED", TRANSIENT),
        ("ABORTED", TRANSIENT),
        ("INTERNAL", TRANSIENT),
        ("UNKNOWN", TRANSIENT),
        ("RESOURCE_EXHAUSTED", THROTTLED),
        ("INVALID_ARGUMENT", PERMANENT),
        ("NOT_FOUND", PERMANENT),
        ("ALREADY_EXISTS", PERMANENT),
        ("PERMISSION_DENIED", PERMANENT),
        ("UNAUTHENTICATED", PERMANENT),
        ("FAILED_PRECONDITION", PERMANENT),
        ("OUT_OF_RANGE", PERMANENT),
        ("UNIMPLEMENTED", PERMANENT),
        ("DATA_LOSS", PERMANENT),
        ("CANCELLED", UNKNOWN),
    ],
)
def test_grpc_goes_by_status_code(grpc_address, code, expected):
    error = raised(grpc_call, grpc_address, code.encode())
    assert error.code().name == code
    check(error, expected)


SEVEN_AND_A_HALF_SECONDS = (
    "0808120d71756f746120757365642075701a430a2b747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e51756f74614661696c"
    "75726512140a120a0970726f6a6563743a37120572656164731a360a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e52"
    "65747279496e666f120a0a0808071080cab5ee01"
)
"""A google.rpc.Status with a QuotaFailure and a RetryInfo, as Google's own classes write it."""
BELOW_ZERO = (
    "080e1201781a390a28747970652e676f6f676c65617069732e636f6d2f676f6f676c652e7270632e5265747279496e666f120d0a0b08fdffffffffff"
    "ffffff01"
)


@pytest.mark.parametrize(
    ("answer", "expected", "wait"),
    [
        (f"RESOURCE_EXHAUSTED:grpc-status-details-bin={SEVEN_AND_A_HALF_SECONDS}", THROTTLED, 7.5),
        (f"UNAVAILABLE:grpc-status-details-bin={SEVEN_AND_A_HALF_SECONDS}", TRANSIENT, 7.5),
        (f"UNAVAILABLE:grpc-status-details-bin={BELOW_ZERO}", TRANSIENT, 0.0),
        (f"UNAVAILABLE:grpc-status-details-bin={SEVEN_AND_A_HALF_SECONDS[:-8]}", TRANSIENT, None),
        ("UNAVAILABLE:grpc-status-details-bin=ffffffff", TRANSIENT, None),
        ("RESOURCE_EXHAUSTED:grpc-retry-pushback-ms=250", THROTTLED, 0.25),
        ("RESOURCE_EXHAUSTED:grpc-retry-pushback-ms=-1", THROTTLED, None),
    ],
)
def test_grpc_waits_as_long_as_the_server_asks(grpc_address, answer, expected, wait):
    found = classify(raised(grpc_call, grpc_address, answer.encode()))
    assert (found.classification, found.retry_after) == (expected, wait)


def test_a_grpc_call_that_is_too_large_is_permanent_though_its_code_is_that_of_a_quota(grpc_address):
    error = raised(grpc_call, grpc_address, b"2000")
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    check(error, PERMANENT)


def test_a_grpc_server_that_is_away_or_silent_is_transient(closed_port, deaf_port):
    check(raised(grpc_call, f"127.0.0.1:{closed_port}", b"1"), TRANSIENT)
    check(raised(grpc_call, f"127.0.0.1:{deaf_port}", b"1", timeout=0.05), TRANSIENT)


def test_grpc_aio_goes_by_status_code(grpc_address):
    async def call():
        async with grpc.aio.insecure_channel(grpc_address) as channel:
            await channel.unary_unary("/shop.Orders/Ship")(b"NOT_FOUND")

    error = raised(asyncio.run, call())
    assert isinstance(error, grpc.aio.AioRpcError)
    check(error, PERMANENT)


@table((grpc.RpcError(), UNKNOWN), (grpc.FutureTimeoutError(), TRANSIENT))
def test_other_exceptions_of_grpc(error, expected):
    check(error, expected)


class Order(pydantic.BaseModel):
    total: float


class Row(msgspec.Struct):
    total: float


def schema_of_nothing():
    pydantic.TypeAdapter(object.__new__(type("Unknown", (), {})))


@table(
    (raised(Order.model_validate, {"total": "x"}), PERMANENT),
    (raised(Order.model_validate_json, "{"), PERMANENT),
    (raised(schema_of_nothing), BUG),
    (raised(msgspec.json.decode, b"{}", type=Row), PERMANENT),
    (raised(msgspec.json.decode, b"{"), PERMANENT),
    (raised(msgspec.json.encode, {"a": object()}), PERMANENT),
    (msgspec.EncodeError("too deep"), PERMANENT),
    (raised(jsonschema.validate, {"total": "x"}, {"properties": {"total": {"type": "number"}}}), PERMANENT),
    (raised(jsonschema.validate, {}, {"type": "nothing"}), BUG),
)
def test_data_that_does_not_fit_its_schema_is_permanent_and_a_wrong_schema_is_a_bug(error, expected):
    check(error, expected)


NOT_IN_THE_DEVELOPMENT_SET = ("psycopg2.", "boto3.", "s3transfer.", "MySQLdb.", "asyncmy.")
HOME = {"cimpl": "confluent_kafka.cimpl"}
"""Modules that are not found under the name that their classes give."""
NAMES = sorted(name for name in {*KNOWN_ERRORS, *ANSWERS, *WRAPPERS} if not name.startswith(NOT_IN_THE_DEVELOPMENT_SET))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_the_classifier_knows_is_that_of_a_real_class(name):
    parts = name.split(".")
    found = None
    for cut in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            module = ".".join(parts[:cut])
            found = importlib.import_module(HOME.get(module, module))
            for part in parts[cut:]:
                found = getattr(found, part)
            break
    assert isinstance(found, type)
    assert f"{found.__module__}.{found.__qualname__}" == name


CLIENTS = ["aiohttp", "asyncpg", "botocore", "bson", "grpc", "httpx", "jsonschema", "psycopg", "pydantic", "pymongo"]
CLIENTS += [
    "redis",
    "requests",
    "sqlalchemy",
    "urllib3",
    "aiokafka",
    "amqp",
    "confluent_kafka",
    "django",
    "kombu",
    "mysql",
    "nats",
]
CLIENTS += ["pika", "pymysql"]


def test_importing_unpoison_and_classifying_imports_none_of_these_packages():
    code = f"import sys, unpoison.classify.classifier as c; c.classify(OSError()); print(set({CLIENTS}) & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")
