"""A file that cannot serve as a broker is refused with what is wrong and what to do."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.sqlite_files import opened
from unpoison.brokers.sqlite.file import kind_of_file_system, path_of, refuse_network
from unpoison.errors import BrokerUnavailable, ConfigError

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /srv/share rw shared:2 - nfs4 server:/export rw
31 30 254:1 / /srv/share/local rw master:3 propagate_from:1 - xfs /dev/vdb rw
32 22 0:26 / /mnt/with\040space rw - cifs //server/share rw
33 22 0:27 / /mnt/s3 rw - fuse.s3fs s3fs rw
34 22 0:28 / /home rw - btrfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///shop.db", "shop.db"),
        ("sqlite:///data/shop.db", "data/shop.db"),
        ("sqlite:////var/lib/shop.db", "/var/lib/shop.db"),
        ("sqlite:///with%20space.db", "with space.db"),
    ],
)
def test_a_url_names_a_file(url, path):
    assert path_of(url) == path


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://shop.db", "sqlite://host/shop.db", "sqlite:///:memory:"])
def test_a_url_that_names_no_file_is_refused(url):
    with pytest.raises(ConfigError, match=r"names no SQLite file: sqlite:///shop\.db is a file in the working directory"):
        path_of(url)


def test_a_url_with_options_is_refused():
    with pytest.raises(ConfigError, match="SQLite URLs have none"):
        path_of("sqlite:///shop.db?mode=ro")


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist. Create it first: mkdir -p .*/missing"):
        opened(tmp_path / "missing" / "shop.db")


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path):
    file = tmp_path / "shop.db"
    file.write_bytes(b"this is a text, and a long one at that. " * 200)
    with pytest.raises(BrokerUnavailable, match=r"not an intact SQLite database. Point the URL at another file"):
        opened(file)
    assert file.read_bytes() == b"this is a text, and a long one at that. " * 200


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(BrokerUnavailable, match="unable to open database file"):
        opened(tmp_path)


def test_a_file_that_is_refused_is_closed_at_once(tmp_path, monkeypatch):
    connections = []

    def connect(*how, **options):
        connections.append(sqlite3.connect(*how, **options))
        return connections[-1]

    monkeypatch.setattr("unpoison.brokers.sqlite.file.sqlite3", SimpleNamespace(**{**vars(sqlite3), "connect": connect}))
    (tmp_path / "shop.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(BrokerUnavailable):
        opened(tmp_path / "shop.db")
    (connection,) = connections
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("select 1")


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/srv", "ext4"),
        ("/srv/share", "nfs4"),
        ("/srv/share/queues", "nfs4"),
        ("/srv/shared", "ext4"),
        ("/srv/share/local/queues", "xfs"),
        ("/mnt/with space/queues", "cifs"),
        ("/mnt/s3", "fuse.s3fs"),
        ("/home/me", "btrfs"),
    ],
)
def test_the_file_system_of_a_folder_is_known(tmp_path, folder, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.lstrip())
    assert kind_of_file_system(Path(folder), str(mounts)) == kind


def test_where_the_system_does_not_tell_nothing_is_refused(tmp_path):
    assert kind_of_file_system(tmp_path, str(tmp_path / "missing")) == ""
    refuse_network("shop.db", "")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "ceph", "glusterfs"])
def test_network_file_systems_are_refused(kind):
    with pytest.raises(ConfigError, match=rf"network file system \({kind}\).*Use a local disk"):
        refuse_network("shop.db", kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuse.ext4"])
def test_local_file_systems_are_accepted(kind):
    refuse_network("shop.db", kind)


def test_the_file_system_is_looked_at_when_a_file_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("unpoison.brokers.sqlite.file.kind_of_file_system", lambda folder: "nfs4")
    with pytest.raises(ConfigError, match="network file system"):
        opened(tmp_path / "shop.db")
    assert not (tmp_path / "shop.db").exists()
