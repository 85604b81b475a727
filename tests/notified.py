"""Who takes the notices of a test? A web server and a mail server on the loopback, that answer what the test tells them."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from unpoison.notifying.notice import Kind, Notice, Place, Step

PLACE = Place("worker-7", 4711, "shop:app")


@dataclass
class Webhooks:
    """A web server. `answers` are given in turn, each as status and headers; then it is 200. `before` is called first."""

    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    taken: list[Any] = field(default_factory=list)
    """The bodies of what was answered with 200."""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.taken]

    def of(self, kind: str) -> list[Any]:
        return [each for each in self.taken if each["kind"] == kind]


@contextmanager
def webhooks() -> Iterator[Webhooks]:
    server = Webhooks()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.before()
            server.requests.append((self.path, dict(self.headers), body))
            status, headers = server.answers.pop(0) if server.answers else (200, {})
            if status == 200:
                server.taken.append(json.loads(body))
            with suppress(OSError):  # who asked may not have waited
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok" if status == 200 else b"no: " + self.path.encode())

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.02,))
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}/hooks/T0PSECRET?key=HUSHHUSH"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def notice(**facts: Any) -> Notice:
    """One of a new group, unless said otherwise."""
    todo: Sequence[Step] = (Step("Look at one", "unpoison dlq show orders-1 --app shop:app"),)
    known = {
        "kind": Kind.NEW_GROUP,
        "subject": "group|2-abc",
        "size": 3.0,
        "title": "New poison in 'orders': KeyError",
        "source": "orders",
        "since": 100.0,
        "bad": "3 dead letters so far",
        "doing": "They are kept as dead letters and not tried again (bug). All other messages go on.",
        "todo": todo,
        "counts": {"dead": 3},
        "fingerprint": "2-abc",
        "classification": "bug",
        "error": "KeyError: piano",
        "letter_id": "orders-1",
    }
    return Notice(**{**known, **facts})
