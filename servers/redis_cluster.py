"""How do several Redis servers become a cluster?"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import redis

from servers.errors import ServerFailed
from servers.server import Server
from servers.starting import private

SLOTS = 16_384


@contextmanager
def cluster(nodes: int = 3) -> Iterator[list[Server]]:
    """A real cluster of so many masters, each with its share of the slots. Yields once every node says that all is well."""
    with ExitStack() as stack:
        settings = {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", "databases": "1"}
        servers = [stack.enter_context(private("redis", settings=settings)) for _ in range(nodes)]
        clients = [stack.enter_context(redis.Redis.from_url(server.url, socket_timeout=5)) for server in servers]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER ADDSLOTSRANGE", number * SLOTS // nodes, (number + 1) * SLOTS // nodes - 1)
            for other in servers:
                client.execute_command("CLUSTER MEET", "127.0.0.1", other.port, other.ports["bus"])
        deadline = time.monotonic() + 60
        while not all(_is_well(client, nodes) for client in clients):
            if time.monotonic() > deadline:
                raise ServerFailed(f"the {nodes} nodes did not become a cluster within 60 s:\n{servers[0].last_log_lines()}")
            time.sleep(0.05)
        yield servers


def _is_well(client: "redis.Redis", nodes: int) -> bool:
    told = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
    return bool(told.get("cluster_state") == "ok" and int(told.get("cluster_known_nodes", 0)) == nodes)
