"""How does a benchmark get a server whose work is not taken for a disturbance?"""

from collections.abc import Iterator
from contextlib import contextmanager

import servers
from bench.harness import machine
from servers import Server


@contextmanager
def served(name: str) -> Iterator[Server]:
    """A private one, with its ordinary settings."""
    with servers.private(name) as server:
        process = server.server_process()
        machine.servers[:] = [process.pid] if process else []
        try:
            yield server
        finally:
            machine.servers.clear()
