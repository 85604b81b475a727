"""How is a SQLite file opened so that several processes can share it and a power cut loses nothing confirmed?"""

import os
import re
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

from unpoison.brokers.sqlite import errors
from unpoison.errors import ConfigError
from unpoison.port.broker_url import masked

LOG_LIMIT = 64 * 2**20
"""Bytes that the log is cut down to whenever everything in it has been moved to the file."""

FORMS = "sqlite:///shop.db is a file in the working directory, sqlite:////srv/shop.db one anywhere"

_END_OF_PATH = re.compile("[?#]")
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
_NETWORK_FUSE = {"fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "fuse.gcsfuse", "fuse.davfs2", "fuse.ceph"}


def path_of(url: str) -> str:
    """The file that a URL names: sqlite:///shop.db in the working directory, sqlite:////var/lib/shop.db anywhere."""
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
    """The same file, whatever the working directory is later."""
    return url_of(os.path.abspath(path_of(url)))  # noqa: PTH100 - symbolic links stay as they are


def _parts(text: str) -> tuple[str, str, str]:
    found = _END_OF_PATH.search(text)
    return (text, "", "") if found is None else (text[: found.start()], found[0], text[found.end() :])


def _file_meant(rest: str) -> str:
    """What sqlite:shop.db, sqlite:/srv/shop.db and sqlite://shop.db were probably to say."""
    path = unquote(_parts(rest.removeprefix("//"))[0])
    return "" if path in ("", "/", ":memory:") else path


def connect(path: str, *, create: bool = True) -> sqlite3.Connection:
    """A connection in WAL mode; transactions are begun and ended by hand, commits are not synced unless asked for."""
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


def _make_private(path: str) -> None:
    """A new file is for its own user alone: messages hold what is nobody else's business. An existing one keeps its mode.

    SQLite gives the log and its index the mode of the file.

    Made without being opened: to close a file drops all locks that this process has on it, also those of its other connections.
    """
    with suppress(OSError, AttributeError):  # it is there; or it cannot be made, which SQLite says next; or not on this system
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
        raise ConfigError(
            f"The SQLite file {path!r} does not exist, and nothing is to be created here (the current folder is "
            f"{str(Path.cwd())!r}). Check the path; the first publish or run makes the file."
        )


def _switched_to_wal(connection: sqlite3.Connection) -> str:
    """The mode it is in now. When several processes make a new file at once, SQLite lets one switch and tells the others that it
    is locked, without waiting; so it is asked again."""
    until = time.monotonic() + errors.BUSY_TIMEOUT
    while True:
        try:
            return str(connection.execute("pragma journal_mode=wal").fetchone()[0])
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.005)


def kind_of_file_system(folder: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that holds the folder; empty where the system does not tell."""
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
