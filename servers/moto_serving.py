"""moto, one request at a time: run by path, with a port.

moto itself serves requests in threads and guards nothing: it hands one message out twice, and brings deleted ones back (17 of
1,000, deleted by six requests at once). SQS does neither.
"""

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

LOOK_EVERY = 0.02
"""Seconds between two looks for a request that waits for a message: it must not keep others waiting."""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneByOne:
    """An application that never does two things at once."""

    def __init__(self, application: Application) -> None:
        self._application, self._lock = application, threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        asked, until = without_waiting(environ, body)
        while True:
            status, answer = self._done(environ, asked)
            if time.monotonic() >= until or b'"Messages"' in answer:
                start(*status)
                return [answer]
            time.sleep(LOOK_EVERY)

    def _done(self, environ: dict[str, Any], body: bytes) -> tuple[Any, bytes]:
        told: list[Any] = []
        request = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        with self._lock:
            answer = b"".join(self._application(request, lambda *status: told.append(status)))
        return told[0], answer


def without_waiting(environ: dict[str, Any], body: bytes) -> tuple[bytes, float]:
    """What is asked, with an answer at once, and until when it may be asked again."""
    if environ.get("HTTP_X_AMZ_TARGET") != "AmazonSQS.ReceiveMessage":
        return body, 0.0
    asked = json.loads(body)
    seconds = asked.get("WaitTimeSeconds")
    if not isinstance(seconds, int) or not 0 < seconds <= 20:
        return body, 0.0
    return json.dumps({**asked, "WaitTimeSeconds": 0}).encode(), time.monotonic() + seconds


if __name__ == "__main__":
    moto = OneByOne(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), moto, threaded=True, request_handler=MotoRequestHandler)
