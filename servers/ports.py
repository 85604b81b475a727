"""Which ports does a new server get, and is there somebody at one?"""

import glob
import random
import socket
from contextlib import closing
from pathlib import Path

from servers.errors import ServerFailed
from servers.files import read_json


def greets(port: int, hello: bytes = b"", answer: bytes = b"") -> bool:
    """Is there somebody at the port, and does the answer to `hello` begin as it should?"""
    try:
        with closing(socket.create_connection(("127.0.0.1", port), timeout=2)) as connection:
            connection.sendall(hello)
            return not answer or connection.recv(len(answer)) == answer
    except OSError:
        return False


def on_record(state: Path) -> set[int]:
    """The ports of every server that is known here, also of those that are down just now."""
    # Not Path.glob: it raises if another run deletes a folder while this one looks into it.
    records = [read_json(Path(path)) for path in glob.glob(f"{glob.escape(str(state))}/*/*/record.json")]  # noqa: PTH207
    return {port for record in records if record for port in record["ports"].values()}


def free_port(taken: set[int]) -> int:
    """A port that nobody has, below those that the system gives to outgoing connections.

    From that range a client that keeps connecting to a killed server would sooner or later get the very port it connects to, and
    the server could not come back.
    """
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    top = max(lowest_outgoing, 20_000)
    for port in random.sample(range(top - 10_000, top), 1_000):
        if port in taken:
            continue
        with closing(socket.socket()) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
        taken.add(port)
        return port
    raise ServerFailed(f"no free port among 1,000 tried below {top}; see: ss -tln")
