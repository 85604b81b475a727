"""How does one get a running server, alone or together with others?"""

import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from servers.entries import ENTRIES, entry
from servers.errors import ServerMissing
from servers.files import locked, read_json
from servers.owners import Owner
from servers.server import Entry, Server


def get(name: str) -> None:
    """Have the program of a server, installed if need be. Raises ServerMissing."""
    wanted = entry(name)
    if sys.platform != "linux":
        raise ServerMissing(
            f"servers are started on Linux only, and this is {sys.platform}. Start {name} with `docker compose up` (compose.yaml)"
            f" and put its address into {wanted.variable}."
        )
    try:
        wanted.place.get()
    except ServerMissing as error:
        raise ServerMissing(f"{str(error).rstrip('.')}. Or put the address of a {name} into {wanted.variable}.") from error


def shared(name: str, owner: Owner, addresses: Mapping[str, str] = os.environ) -> Server:
    """The owner's server of this kind: the one whose address is given, else one that is started by whoever asks first."""
    wanted = entry(name)
    if addresses.get(wanted.variable):
        return wanted.make(wanted, addresses=addresses)
    get(name)
    upstream = shared(wanted.behind, owner, addresses).url if wanted.behind else None
    owner.move_in()
    with locked(owner.folder / f"{name}.lock"):
        server = loaded(wanted, owner, name)
        if server is None or not server.running:
            server = server or Server.create(wanted, owner.folder / name, upstream=upstream)
            server.start()
        return server


@contextmanager
def private(
    name: str, *, upstream: str | None = None, settings: Mapping[str, str] | None = None, owner: Owner | None = None
) -> Iterator[Server]:
    """A server of one's own, started, and gone after the block. The variables with addresses are not looked at."""
    wanted = entry(name)
    get(name)
    owner = owner or Owner.own()
    owner.move_in()
    if wanted.behind and upstream is None:
        with (
            private(wanted.behind, owner=owner) as behind,
            private(name, upstream=behind.url, settings=settings, owner=owner) as server,
        ):
            yield server
        return
    server = Server.create(wanted, owner.folder / f"{name}-{uuid.uuid4().hex[:6]}", upstream=upstream)
    try:
        server.start(settings)
        yield server
    finally:
        server.discard()


def loaded(wanted: Entry, owner: Owner, label: str) -> Server | None:
    """A server that somebody has made already."""
    folder = owner.folder / label
    return wanted.make(wanted, folder) if read_json(folder / "record.json") else None


def running(owner: Owner) -> list[Server]:
    """Everything that the owner has, those in front first."""
    made = [read_json(path) and (path.parent, read_json(path)["name"]) for path in owner.folder.glob("*/record.json")]
    servers = [ENTRIES[name].make(ENTRIES[name], folder) for folder, name in filter(None, made)]
    return sorted(servers, key=lambda server: server.entry.behind is None)


def stop_all(owner: Owner) -> None:
    """End everything of the owner, those in front first, with all data."""
    for server in running(owner):
        server.discard()
    owner.end()
