"""A URL that cannot be meant as it stands is refused in one sentence, which says how to write it."""

import os

import pytest

from unpoison import App
from unpoison.brokers import ADAPTERS, broker_for, resolved
from unpoison.brokers.sqlite.file import path_of
from unpoison.errors import ConfigError

NETWORK = sorted(name for name in ADAPTERS if name not in ("sqlite", "memory", "sqs"))


def more_of(scheme):
    return {"kafka": "?group=g", "kafka+ssl": "?group=g", "redis+sentinel": "/main", "rediss+sentinel": "/main"}.get(scheme, "")


@pytest.mark.parametrize("scheme", NETWORK)
@pytest.mark.parametrize("port", ["notaport", "99999", "0", "-1", "5672x"])
def test_a_port_that_is_none_is_named_in_one_sentence(scheme, port):
    with pytest.raises(ConfigError, match=f"port '{port}', and a port is a number from 1 to 65535"):
        broker_for(f"{scheme}://u:p@h:{port}{more_of(scheme)}")


@pytest.mark.parametrize("scheme", NETWORK)
@pytest.mark.parametrize("host", ["[::1", "::1]", "[", "[::1]x:1"])
def test_half_an_ipv6_address_is_refused_in_one_sentence(scheme, host):
    with pytest.raises(ConfigError) as refused:
        broker_for(f"{scheme}://{host}/0")
    assert "\n" not in str(refused.value)
    assert "[" in str(refused.value)


@pytest.mark.parametrize("scheme", NETWORK)
def test_what_looks_like_a_password_without_a_host_is_not_told(scheme):
    with pytest.raises(ConfigError) as refused:
        broker_for(f"{scheme}://app:s3cr3t{more_of(scheme)}")
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("scheme", [*NETWORK, "sqs", "memory"])
@pytest.mark.parametrize("form", ["{}:h", "{}:/h", "{}://h#frag", "{}://h\n"])
def test_every_scheme_refuses_what_it_would_not_use(scheme, form):
    with pytest.raises(ConfigError):
        broker_for(form.format(scheme))


def test_an_endpoint_of_sqs_is_checked_like_a_url():
    for endpoint in ("http://h:99999", "http://h:x", "http://[::1", "ftp://h"):
        with pytest.raises(ConfigError):
            broker_for(f"sqs://?region=x&endpoint={endpoint}")


def test_several_servers_of_rabbitmq_are_refused():
    with pytest.raises(ConfigError, match="names 2 servers"):
        broker_for("amqp://a,b/v")


def test_a_user_without_a_password_is_told_apart_for_rabbitmq():
    with pytest.raises(ConfigError, match=r"'amqp://app@host/shop' names a user without a password"):
        broker_for("amqp://app@host/shop")
    broker_for("amqp://app:@host/shop")


def test_postgres_is_postgresql():
    assert type(broker_for("postgres://h/db")) is type(broker_for("postgresql://h/db"))
    with pytest.raises(ConfigError, match="99999"):
        broker_for("postgres:///db?host=h&port=5432,99999")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///shop.db", "shop.db"),
        ("sqlite:////srv/shop.db", "/srv/shop.db"),
        ("sqlite:///my%20shop%23.db", "my shop#.db"),
        ("sqlite:///folder/me@work.db", "folder/me@work.db"),
        ("SQLite:///shop.db", "shop.db"),
    ],
)
def test_a_sqlite_url_names_a_file(url, path):
    assert path_of(url) == path


@pytest.mark.parametrize(
    ("url", "write"),
    [
        ("sqlite:shop.db", "write sqlite:///shop.db"),
        ("sqlite:/srv/x.db", "write sqlite:////srv/x.db"),
        ("sqlite://shop.db", "write sqlite:///shop.db"),
        ("sqlite://folder/shop.db", "write sqlite:///folder/shop.db"),
        ("sqlite:///q.db#frag", "Remove '#frag'; if it belongs to the name of the file, write %23 in place of #"),
        ("sqlite:///q.db?x=1", r"Remove '\?x=1'; if it belongs to the name of the file, write %3F in place of \?"),
        ("sqlite://", "sqlite:///shop.db is a file in the working directory"),
        ("sqlite:///", "sqlite:////srv/shop.db one anywhere"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///shop.db\n", "control character"),
    ],
)
def test_a_sqlite_url_that_could_mean_another_file_is_refused_with_the_right_form(url, write):
    with pytest.raises(ConfigError, match=write):
        App(url)


def test_a_relative_file_is_the_same_wherever_the_process_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = App("sqlite:///a%20shop.db")
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    app.publish("orders", {"id": 1})
    app.close()
    assert (tmp_path / "a shop.db").exists()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert resolved(app.settings.url) == app.settings.url == f"sqlite:///{tmp_path}/a%20shop.db"
