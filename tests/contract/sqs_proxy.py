"""How does a server say no that knows no rights, no limits and no bad days? By a proxy before it, as Amazon's own would."""

import json
import socket
import threading
from base64 import b64decode
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LIMIT = 1_048_576
REFUSAL = {"__type": "com.amazonaws.sqs#AccessDenied", "message": "User is not authorized to perform: sqs:sendmessage"}
TOO_LONG = {"__type": "com.amazonaws.sqs#BatchRequestTooLong", "message": "Batch requests cannot be longer than 1048576 bytes"}
PASSED_ON = ("Content-Type", "X-Amz-Target", "Authorization", "X-Amz-Date", "x-amzn-query-mode")


class Proxy:
    """Passes everything on, unless `denies` says of an operation and a queue's URL that it must not be, or it is too large.

    Both servers count bodies at most; Amazon's own counts attributes too. `says` gives another answer instead, as status and
    body, and `fails` the error code of one entry of a batch, whose others are passed on. `accepts` says whether a signature is
    still worth something. Each is asked in several threads.
    """

    def __init__(self, endpoint: str) -> None:
        self.denies: Callable[[str, str], bool] = lambda operation, queue: False
        self.says: Callable[[str, dict], tuple[int, bytes] | None] = lambda operation, asked: None
        self.fails: Callable[[str, dict, dict], str | None] = lambda operation, asked, entry: None
        self.accepts: Callable[[str], bool] = lambda authorization: True
        self.loses: Callable[[bytes], bool] = lambda body: False
        """Of a request, by its body: whether its answer is taken away once it was carried out."""
        self.seen: list[tuple[str, dict]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, urlsplit(endpoint).netloc))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, name="sqs-proxy", daemon=True).start()

    def asked(self, operation: str, queue: str) -> list[dict]:
        """The requests of this kind for the queue whose name ends like this."""
        return [asked for name, asked in list(self.seen) if name == operation and asked.get("QueueUrl", "").endswith(queue)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def refusal(code: str, text: str = "said the proxy") -> bytes:
    """How SQS says no to a whole request."""
    return json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": text}).encode()


def size_of(asked: dict) -> int:
    """Bytes of the messages in a request to send some."""
    return sum(map(_size, asked.get("Entries", [asked])))


def _size(entry: dict) -> int:
    told = sum(
        len(name)
        + len(value["DataType"])
        + len(value.get("StringValue", "").encode())
        + len(b64decode(value.get("BinaryValue", "")))
        for name, value in (entry.get("MessageAttributes") or {}).items()
    )
    return len(entry.get("MessageBody", "").encode()) + told


def _handler(proxy: Proxy, upstream: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            operation = self.headers["X-Amz-Target"].rpartition(".")[2]
            asked = json.loads(body)
            proxy.seen.append((operation, asked))
            if proxy.denies(operation, asked.get("QueueUrl", "")):
                status, answer = 403, json.dumps(REFUSAL).encode()
            elif not proxy.accepts(self.headers["Authorization"]):
                status, answer = 403, refusal("ExpiredToken", "The security token included in the request is expired")
            elif size_of(asked) > LIMIT:
                status, answer = 400, json.dumps(TOO_LONG).encode()
            else:
                status, answer = proxy.says(operation, asked) or self._ask_some(operation, asked, body)
            if proxy.loses(body):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _ask_some(self, operation: str, asked: dict, body: bytes) -> tuple[int, bytes]:
            codes = {entry["Id"]: proxy.fails(operation, asked, entry) for entry in asked.get("Entries", ())}
            failed = [{"Id": id_, "Code": code, "SenderFault": False, "Message": "no"} for id_, code in codes.items() if code]
            if not failed:
                return self._ask(body)
            left = [entry for entry in asked["Entries"] if not codes[entry["Id"]]]
            status, answer = self._ask(json.dumps({**asked, "Entries": left}).encode()) if left else (200, b"{}")
            told = json.loads(answer)
            return status, json.dumps({**told, "Failed": [*told.get("Failed", ()), *failed]}).encode()

        def _ask(self, body: bytes) -> tuple[int, bytes]:
            connection = HTTPConnection(upstream)
            try:
                headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
                connection.request("POST", self.path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()

        def log_message(self, *arguments: object) -> None:
            """No test reads it."""

    return Handler
