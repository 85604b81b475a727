"""The consumer process beside a web application: runs the app until the application is gone.

python -m unpoison.programs.companion_main SOCKET_FD module:app URL, where URL is that of the application's SQLite file, or empty
"""

import logging
import socket
import sys
import threading
from functools import cache

from unpoison.app import consumers_of, make_metrics, worker_hooks_of
from unpoison.errors import UnpoisonError
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp
from unpoison.port.broker_url import masked_text
from unpoison.programs.importing import import_app


def main() -> None:
    line, reference, url = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        _run(line, reference, url)
    except UnpoisonError as error:  # the application's process starts it again, and its log is where people look
        logging.getLogger("unpoison").error("%s", masked_text(str(error)))  # noqa: TRY400 - it says what to do
        sys.exit(1)


def _run(line: socket.socket, reference: str, url: str) -> None:
    app = cache(lambda: import_app(reference))
    made = RunnableApp.from_reference(
        reference, lambda: consumers_of(app()), worker_hooks=lambda: worker_hooks_of(app()), url=url
    )
    run = Run([made], is_dedicated=True, make_metrics=make_metrics)
    threading.Thread(target=_stop_at_end_of_line, args=(line, run), name="unpoison-line", daemon=True).start()
    run.serve()


def _stop_at_end_of_line(line: socket.socket, run: Run) -> None:
    try:
        line.recv(1)
    finally:
        run.stop()


if __name__ == "__main__":
    main()
