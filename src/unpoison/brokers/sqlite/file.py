"""The file in a SQLite URL, and connections to it that several processes share and that lose nothing in a power cut."""

import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

from unpoison.brokers.sqlite import errors
from unpoison.errors import ConfigError
from unpoison.port.broker_url import masked
from unpoison.port.table_versions import NotCreated

LOG_LIMIT = 64 * 2**20
"""Bytes to which the log is truncated once all of it has been moved to the file."""

FORMS = "sqlite:///shop.db is a file in the working directory, sqlite:////srv/shop.db one anywhere"

_END_OF_PATH = re.compile("[?#]")
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
_NETWORK_FUSE = {"fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.gcsfuse", "fuse.davfs2", "fuse.ceph"}


def path_of(url: str) -> str:
    """The path in a URL: sqlite:///shop.db is in the working directory, sqlite:////var/lib/shop.db is absolute."""
    rest = url[len("sqlite:") :]
    if not url.isprintable():
        raise ConfigError(f"{url!r} has a line end or another control character in it. Remove it; {FORMS}")
    if not rest.startswith("///"):
        meant = f" If that file is meant, write {url_of(_file_meant(rest))}" if _file_meant(rest) else ""
        raise ConfigError(f"{masked(url)!r} names no SQLite file: {FORMS}.{meant}")
    path, mark, more = _parts(rest[3:])
    if mark:
        name = "options" if mark == "?" else "a fragment"
        raise ConfigError(
            f"{url!r} has {name} behind {mark!r}, and SQLite URLs have none. Remove {mark + more!r}; if it belongs to the name "
            f"of the file, write {quote(mark)} in place of {mark}"
        )
    if path in ("", "/", ":memory:"):
        raise ConfigError(f"{url!r} names no SQLite file: {FORMS}. To keep everything in this process use memory://")
    return unquote(path)


def url_of(path: str) -> str:
    """The URL of a file. For an absolute path it has four slashes."""
    return f"sqlite:///{quote(path)}"


def resolved(url: str) -> str:
    """The URL with an absolute path, so that it does not depend on the working directory."""
    return url_of(os.path.abspath(path_of(url)))  # noqa: PTH100 - symbolic links stay as they are


def _parts(text: str) -> tuple[str, str, str]:
    found = _END_OF_PATH.search(text)
    return (text, "", "") if found is None else (text[: found.start()], found[0], text[found.end() :])


def _file_meant(rest: str) -> str:
    """The file that sqlite:shop.db, sqlite:/srv/shop.db or sqlite://shop.db probably means."""
    path = unquote(_parts(rest.removeprefix("//"))[0])
    return "" if path in ("", "/", ":memory:") else path


def connect(path: str, *, create: bool = True) -> sqlite3.Connection:
    """A connection in WAL mode. Transactions are explicit, and commits are not synced by default."""
    if not create:
        must_exist(path)
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ConfigError(
            f"The folder {str(folder)!r} of the SQLite file {path!r} does not exist. Create it first: mkdir -p {folder}"
        )
    refuse_network(path, kind_of_file_system(folder))
    if create:
        _make_private(path)
    with errors.explained(path):
        connection = sqlite3.connect(path, timeout=errors.BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str = "begin immediate") -> Iterator[None]:
    """It is committed when the block ends, and rolled back if the block raises."""
    connection.execute(begin)
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # some errors, such as a full disk, have already rolled it back
            connection.execute("rollback")
        raise


def _make_private(path: str) -> None:
    """Create a new file that only its user can read: messages are private. An existing file keeps its mode.

    SQLite gives the log and its index the mode of the file.

    The file is not opened here: closing a file drops all locks of this process on it, also those of its other connections.
    """
    with suppress(OSError, AttributeError):  # it exists; or it cannot be created, which SQLite reports; or no such call here
        os.mknod(path, 0o600 | stat.S_IFREG)


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    mode = _switched_to_wal(connection)
    if mode != "wal":
        raise ConfigError(
            f"SQLite could not switch {path!r} to WAL (it stayed {mode!r}), which sharing it needs. Use a file on a local disk."
        )
    connection.execute("pragma synchronous=normal")
    connection.execute(f"pragma journal_size_limit={LOG_LIMIT}")


def must_exist(path: str) -> None:
    if not Path(path).exists():
        raise NotCreated(
            f"The SQLite file {path!r} does not exist (the current folder is {str(Path.cwd())!r}), and must not be created here. "
            f"Check the path; the first publish or run creates the file."
        )


def _switched_to_wal(connection: sqlite3.Connection) -> str:
    """Switch to WAL, and return the mode. When several processes create a file at once, SQLite lets one switch and refuses the
    others as locked, without waiting: so try again."""
    until = time.monotonic() + errors.BUSY_TIMEOUT
    while True:
        try:
            return str(connection.execute("pragma journal_mode=wal").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.005)


def kind_of_file_system(folder: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system of the folder; empty where the system does not say."""
    try:
        lines = Path(mounts).read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    target = os.path.realpath(folder)
    for line in lines:
        mount, _, rest = line.partition(" - ")
        point = mount.split()[4].encode().decode("unicode_escape")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind


def refuse_network(path: str, kind: str) -> None:
    if kind in _NETWORK or kind in _NETWORK_FUSE:
        raise ConfigError(
            f"{path!r} is on a network file system ({kind}). File locks do not hold there: two consumers would run the same "
            f"message and the file could be damaged. Use a local disk, or a server such as PostgreSQL or RabbitMQ."
        )
