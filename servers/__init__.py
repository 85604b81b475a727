"""How do tests, benchmarks and examples get the servers they need?

    with servers.private("postgresql") as server:      # nobody else's: may be killed and started again
        server.url, server.kill_hard(), server.start()

    server = servers.shared("rabbitmq", owner)          # one for everybody who names the same owner

For each server, in this order: the address in its variable, used as it is and never stopped (shared ones only: a private one is
for killing); a program that is already there; Debian's package, installed by name. ServerMissing says what would help.
"""

from servers.entries import ENTRIES, entry
from servers.errors import ServerFailed, ServerMissing
from servers.owners import Owner, state_folder
from servers.server import Entry, Server
from servers.starting import get, private, running, shared, stop_all

__all__ = [
    "ENTRIES", "Entry", "Owner", "Server", "ServerFailed", "ServerMissing",
    "entry", "get", "private", "running", "shared", "state_folder", "stop_all",
]  # fmt: skip
