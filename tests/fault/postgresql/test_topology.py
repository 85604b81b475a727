"""Does the script for PostgreSQL create and grant all that an app needs? Run by psql."""

from urllib.parse import urlsplit

import psycopg
import pytest

from tests.fault.planned_topology import Shop, run_script
from unpoison.brokers import needs_for
from unpoison.brokers.postgresql.broker import PostgreSQLBroker


@pytest.fixture
def database(postgresql):
    """A database, and a role that may do nothing in it: its owner's URL, and its own."""
    url = postgresql.fresh()
    role = f"it's {urlsplit(url).path[1:]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role \"{role}\" login password 'secret'")
        yield url, f"{url}{'&' if '?' in url else '?'}user={role.replace(' ', '%20')}&password=secret", role
        connection.execute(f'drop owned by "{role}"')
        connection.execute(f'drop role "{role}"')


def run_as_owner(script, url, folder):
    parts = urlsplit(url)
    login = {"PGUSER": parts.username} | ({"PGPASSWORD": parts.password} if parts.password else {})
    return run_script(script, folder, **login)


@pytest.mark.long
def test_an_app_with_exactly_the_printed_rights_can_do_everything(database, tmp_path):
    owners, url, role = database
    shop = Shop(tmp_path, ("orders", "o'mail"))
    printed = shop.plan(owners, "--user", role)
    run_as_owner(printed.text, owners, tmp_path)
    run_as_owner(printed.text, owners, tmp_path)  # nothing happens
    shop.uses_everything(url)
    for who in (owners, url):
        assert "Nothing is missing here." in shop.plan(who, "--user", role).text


def test_only_what_is_missing_is_printed(database):
    owners, _, role = database
    assert [step.kind for step in needs_for(owners, ["orders"], role).missing()] == ["tables", "source", "rights"]
    broker = PostgreSQLBroker(owners)
    broker.open(["orders"])
    broker.close()
    assert [(step.kind, step.name) for step in needs_for(owners, ["orders", "mail"], role).missing()] == [
        ("source", "mail"),
        ("rights", role),
    ]
    assert needs_for(owners, ["orders"]).missing() == []
