"""The doctor of SQLite: what about a file loses or delays messages. It changes nothing, neither the file nor those beside it."""

import os
import pwd
import shutil
import socket
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote
from urllib.parse import quote as url_quote

from unpoison.brokers.sqlite import schema
from unpoison.brokers.sqlite.errors import explained
from unpoison.brokers.sqlite.file import LOG_LIMIT, kind_of_file_system, must_exist, path_of, refuse_network
from unpoison.brokers.sqlite.owner import READERS, WRITER, Owner, command_of, holders, in_transaction, user_of
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.wording import counted
from unpoison.port import findings
from unpoison.port.broker import Finding

HELD_TOO_LONG = 2.0
"""Seconds with an open write transaction and no commit. Transactions of unpoison take under a millisecond."""

FULL = 2**16
"""Free bytes below which a disk counts as full: about what the smallest transaction needs."""

_HELD = (
    "select host, pid, "
    "(select count(*) from unpoison_leases join unpoison_line on position between first and last where owner = :no) "
    "+ (select count(*) from unpoison_waiting where owner = :no) from unpoison_owners where no = :no"
)

_OF_DISK = ("network-file-system", "damaged", "not-writable", "readable-by-others", "disk-full", "disk-nearly-full")
NAMES = (*_OF_DISK, "not-wal", "log-grown", "file-locked", "lock-held", *findings.NAMES)
DEEP = ("damaged",)


def examine(url: str, sources: Sequence[str], longest: float | None, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG001
    """All findings. `deep` reads the whole file."""
    path = path_of(url)
    must_exist(path)
    found = [*_of_file_system(path), *_of_access(path), *_of_space(path), *_of_log(path)]
    try:
        return found + _of_content(path, sources, url, deep=deep)
    except BrokerUnavailable:
        if not any(each.stops for each in found):
            raise
        return found  # one of them says why the file cannot be read


def _of_content(path: str, sources: Sequence[str], url: str, *, deep: bool) -> list[Finding]:
    found: list[Finding] = []
    with _reading(path) as run:
        found += [*_of_journal(run, path), *_of_writers(run, path)]
        if deep:
            found += _of_damage(run, path)
        version = schema.version(run)
        found += findings.of_version(version, len(schema.MIGRATIONS), url)
        if version == len(schema.MIGRATIONS):
            found += _of_messages(run, path, sources, url)
    return found


def known_sources(url: str) -> Sequence[str]:
    """The sources that this file has been used for."""
    path = path_of(url)
    must_exist(path)
    with _reading(path) as run:
        if schema.version(run) == 0:
            return []
        return [name for (name,) in run.execute("select name from unpoison_sources order by name")]


@contextmanager
def _reading(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write.

    If no process has the file open, it is opened as immutable: an ordinary reader would leave a log and its index behind.
    """
    name = f"file:{url_quote(str(Path(path).absolute()))}?mode=ro{'&immutable=1' if _is_at_rest(path) else ''}"
    with explained(path), closing(sqlite3.connect(name, uri=True, isolation_level=None)) as connection:
        yield connection


def _is_at_rest(path: str) -> bool:
    return not any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal"))


def _is_wal(run: sqlite3.Connection, path: str) -> bool:
    """SQLite answers that, except for a file that is not in use; then the header of the file does.

    Only then: closing a file drops all locks of this process on it, also those of its other connections.
    """
    if not _is_at_rest(path):
        return bool(run.execute("pragma journal_mode").fetchone()[0] == "wal")
    with Path(path).open("rb") as file:
        return file.read(20)[18:] == b"\x02\x02"


def _of_file_system(path: str) -> Iterator[Finding]:
    try:
        refuse_network(path, kind_of_file_system(Path(path).absolute().parent))
    except ConfigError as error:
        said = str(error).partition(" Use a local disk")[0]
        yield Finding(
            "network-file-system",
            f"{said} unpoison refuses to run on it.",
            "Move the file to a local disk, or use a server such as PostgreSQL or RabbitMQ.",
            loses=True,
        )


def _of_access(path: str) -> Iterator[Finding]:
    file = Path(path).absolute()
    beside = [Path(f"{file}{end}") for end in ("-wal", "-shm", "-owners")]
    there = [each for each in (file, *beside) if each.exists()]
    yield from _of_write_access([file.parent, *there])
    yield from _of_read_access(file, there)


def _of_write_access(needed: list[Path]) -> Iterator[Finding]:
    refused = [each for each in needed if not os.access(each, os.W_OK)]
    if refused:
        yield Finding(
            "not-writable",
            f"This user ({_user(os.geteuid())}) may not write {', '.join(map(str, refused))}. It can neither publish nor "
            f"consume; nothing is lost.",
            _way_to_write(refused),
            stops=True,
        )


def _way_to_write(refused: list[Path]) -> str:
    names = " ".join(quote(str(each)) for each in refused)
    if os.statvfs(refused[0]).f_flag & os.ST_RDONLY:
        return f"The disk is mounted read-only. As root:\nmount -o remount,rw {quote(_mount_of(refused[0]))}"
    owners = {each.stat().st_uid for each in refused}
    if owners == {os.geteuid()}:
        return f"This user owns them; allow it:\nchmod u+w {names}"
    others = ", ".join(sorted(_user(owner) for owner in owners - {os.geteuid()}))
    return f"Run unpoison as the user {others}, or give them to this one, as root:\nchown {os.geteuid()} {names}"


def _of_read_access(file: Path, there: list[Path]) -> Iterator[Finding]:
    """Messages are private; and any user who can open a lock file can hold its lock."""
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in file.parents):
        return
    locks = [each for folder in there if folder.is_dir() and os.access(folder, os.R_OK) for each in folder.iterdir()]
    exposed = [each for each in (*there, *locks) if each.stat().st_mode & stat.S_IROTH]
    if exposed:
        modes = ", ".join(f"{each} ({stat.S_IMODE(each.stat().st_mode):04o})" for each in exposed)
        yield Finding(
            "readable-by-others",
            f"Every user of this machine can read {modes}: the messages, or lock files, which they could keep locked. Files "
            f"that unpoison creates are readable only by their user; existing ones keep their mode.",
            f"Unless other users work with the file:\nchmod o= {' '.join(quote(str(each)) for each in exposed)}",
        )


def _user(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name}, id {user}"
    except KeyError:
        return f"id {user}"


def _mount_of(path: Path) -> str:
    return str(next(each for each in (path, *path.parents) if each.is_mount()))


def _of_space(path: str) -> Iterator[Finding]:
    folder = Path(path).absolute().parent
    free, disk = shutil.disk_usage(folder).free, os.statvfs(folder)
    if free < FULL or (disk.f_files and not disk.f_favail):
        what = f"{free:,} bytes are free" if free < FULL else "no more files can be created (inodes)"
        yield Finding(
            "disk-full",
            f"The disk of {path!r} is full: {what}. Nothing can be published, retried or dead-lettered, and consumers "
            f"pause; nothing is lost.",
            f"Free some space there; consumers then continue:\ndf -h {quote(str(folder))}",
            stops=True,
        )
    elif free < LOG_LIMIT:
        yield Finding(
            "disk-nearly-full",
            f"{_size(free)} are free on the disk of {path!r}, and the log of the file alone may take {_size(LOG_LIMIT)}. When "
            f"the disk is full, publish raises and consumers pause; nothing is lost.",
            f"Free some space:\ndf -h {quote(str(folder))}",
        )


def _of_journal(run: sqlite3.Connection, path: str) -> Iterator[Finding]:
    if Path(path).stat().st_size and not _is_wal(run, path):
        yield Finding(
            "not-wal",
            f"{path!r} does not use a write-ahead log. unpoison switches it on when it next opens the file, which fails while "
            f"another program has the file open.",
            f"Close the programs that use the file, then:\nsqlite3 {quote(path)} 'pragma journal_mode=wal'",
        )


def _of_log(path: str) -> Iterator[Finding]:
    log = Path(f"{path}-wal")
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        who = _processes(set(in_transaction(path, READERS)))
        yield Finding(
            "log-grown",
            f"The log {str(log)!r} has grown to {_size(log.stat().st_size)}, more than the {_size(LOG_LIMIT)} that it is cut to "
            f"when no reader is open. A read transaction that stays open makes it grow until the disk is full, and slows "
            f"every query. {f'Reading just now: {who}.' if who else ''}".rstrip(),
            f"End the read transaction, or its program. To see who has the file open:\nfuser -v {quote(path)}",
        )


def _of_writers(run: sqlite3.Connection, path: str) -> Iterator[Finding]:
    """A commit between two looks means that writers take turns, as they should."""
    before = _commits(run)
    ends = time.monotonic() + HELD_TOO_LONG
    while pids := set(in_transaction(path, WRITER)):
        if _commits(run) != before:
            return
        if time.monotonic() > ends:
            yield Finding(
                "file-locked",
                f"A write transaction has been open in {path!r} for more than {HELD_TOO_LONG:g} s, by {_processes(pids)}. No "
                f"other process can write: publish raises and consumers pause until it ends; nothing is lost.",
                f"Commit or roll back there, or end the program:\nkill {' '.join(map(str, sorted(pids)))}",
                stops=True,
            )
            return
        time.sleep(0.01)


def _commits(run: sqlite3.Connection) -> int:
    return int(run.execute("pragma data_version").fetchone()[0])


def _of_damage(run: sqlite3.Connection, path: str) -> Iterator[Finding]:
    try:
        said = [line for (line,) in run.execute("pragma quick_check(5)").fetchall()]
    except sqlite3.DatabaseError as error:
        said = [str(error)]
    if said != ["ok"]:
        yield Finding(
            "damaged",
            f"{path!r} is damaged: {'; '.join(' '.join(line.split()) for line in said)}. "
            f"Messages in the damaged part cannot be read.",
            f"Stop all consumers and keep a copy. Restore a backup, or save what can be read:\n"
            f"sqlite3 {quote(path)} .recover | sqlite3 {quote(path + '.recovered')}",
            loses=True,
        )


def _of_messages(run: sqlite3.Connection, path: str, sources: Sequence[str], url: str) -> Iterator[Finding]:
    dead = (
        "select name, (select count(*) from unpoison_dead where source = unpoison_sources.no and state = 'dead') "
        "from unpoison_sources"
    )
    counts = dict(run.execute(dead).fetchall())
    yield from findings.of_sources(sources, counts, url)
    try:
        yield from _of_vanished(run, path)
        yield from _of_held(run, path)
    except PermissionError as error:
        yield findings.cannot_look(
            "whether consumers have vanished",
            f"This user may not read {str(error.filename)!r}.",
            f"Run it as the owner of the file {path!r}.",
        )
    yield from findings.of_dead_letters({name: n for name, n in counts.items() if not sources or name in sources}, url)


def _of_vanished(run: sqlite3.Connection, path: str) -> Iterator[Finding]:
    for no in Owner(path).vanished(run):
        for row in run.execute(_HELD, {"no": no}).fetchall():
            yield findings.of_vanished(no, *row)


def _of_held(run: sqlite3.Connection, path: str) -> Iterator[Finding]:
    """Locks held by processes other than the consumer: until they end, no other consumer gets its messages."""
    here = socket.gethostname()
    for no, host, pid in run.execute("select no, host, pid from unpoison_owners").fetchall():
        lock = Path(f"{path}-owners", str(no)).absolute()
        if host != here or not lock.exists() or not Owner(path).is_held(no):
            continue
        others = holders(str(lock)) - {pid}
        if command_of(pid) and not others:
            continue  # the consumer itself
        ((_, _, count),) = run.execute(_HELD, {"no": no}).fetchall() or [("", 0, 0)]
        who = _processes(others) or "a process that this user cannot see"
        stop = f"kill {' '.join(map(str, sorted(others)))}" if others else f"sudo fuser -v {quote(str(lock))}"
        yield Finding(
            "lock-held",
            f"Consumer {no} (process {pid}) has ended, but {str(lock)!r} is still locked by {who}. Until that ends, "
            f"no other consumer gets what it held: {counted(count, 'message')}.",
            f"If it is not a handler of that consumer that still runs, end it:\n{stop}",
            stops=True,
        )


def _processes(pids: set[int]) -> str:
    commands = {pid: command_of(pid) for pid in sorted(pids)}
    return ", ".join(f"process {pid}" + (f" ({name}, user {user_of(pid)})" if name else "") for pid, name in commands.items())


def _size(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
