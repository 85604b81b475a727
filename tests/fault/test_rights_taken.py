"""A right that Redis or PostgreSQL takes away from a running consumer pauses its source; it goes on once the right is back."""

from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.fault.redis.redis_parts import opened, raw
from tests.fault.scenes import pause_of_a_lost_right
from unpoison import App
from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.brokers.postgresql.schema import statements
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.testing import given
from unpoison.testing.running import drained

USER = "shop"


def as_user(url: str, password: str = "") -> str:
    place = urlsplit(url)
    return place._replace(netloc=f"{USER}{password and ':' + password}@{place.hostname}:{place.port}").geturl()


@contextmanager
def redis_user(admin: str):
    """The URL of a user with the rights of docs/redis.md, with what takes rights away and what gives them back."""
    rights = "~orders ~dlq:orders ~unpoison:* &unpoison:* +@read +@write +@stream +@scripting +@pubsub +@connection +@transaction"
    with raw(admin) as tool:

        def change(*words: str) -> None:
            tool.execute_command("ACL", "SETUSER", USER, *words)

        change("reset", "on", ">secret", *rights.split(), "+time", "+info")
        try:
            yield as_user(admin, "secret"), lambda: change("-@write", "-@scripting"), lambda: change("+@write", "+@scripting")
        finally:
            tool.execute_command("ACL", "DELUSER", USER)


@contextmanager
def postgresql_user(admin: str):
    with psycopg.connect(admin, autocommit=True) as tool:
        rights = "select, insert, update, delete on all tables in schema public"
        tool.execute(f"drop role if exists {USER}")
        tool.execute(f"create role {USER} login")
        tool.execute(f"grant usage on all sequences in schema public to {USER}")
        tool.execute(f"grant {rights} to {USER}")
        try:
            yield (
                as_user(admin),
                lambda: tool.execute(f"revoke {rights} from {USER}"),
                lambda: tool.execute(f"grant {rights} to {USER}"),
            )
        finally:
            tool.execute(f"drop owned by {USER}")
            tool.execute(f"drop role {USER}")


@pytest.mark.parametrize("user", [redis_user, postgresql_user], ids=["redis", "postgresql"])
def test_a_right_that_is_taken_away_pauses_the_source_and_charges_nobody(request, monkeypatch, user):
    server = user.__name__.removesuffix("_user")
    admin = request.getfixturevalue(server).fresh()
    owner = given.consumer(App(admin), "orders", [].append, schema=bytes)
    drained(owner)  # makes everything
    with user(admin) as (url, take, give):
        app = App(url, create=False)
        said = pause_of_a_lost_right(monkeypatch, app, lambda: owner.publish("orders", 1), take, give)
    assert f"docs/{server}.md" in said
    assert owner.dlq("orders").count() == 0
    owner.close()


def test_without_the_right_to_look_at_groups_redis_does_not_call_the_group_missing(redis):
    admin = redis.fresh()
    with opened(admin), redis_user(admin) as (url, _, __), raw(admin) as tool:
        tool.execute_command("ACL", "SETUSER", USER, "-xinfo")
        with pytest.raises(BrokerUnavailable, match=r"has no permission for that.*docs/redis\.md"), opened(url, create=False):
            pass


def test_a_right_to_read_that_redis_takes_away_is_named_with_the_page_that_lists_rights(redis):
    admin = redis.fresh()
    with opened(admin), redis_user(admin) as (url, _, __), raw(admin) as tool, opened(url, create=False) as broker:
        tool.execute_command("ACL", "SETUSER", USER, "-xreadgroup")
        with pytest.raises(BrokerUnavailable, match=r"'xreadgroup'.*docs/redis\.md"):
            broker.fetch("orders", 1)


def test_with_create_false_one_error_has_the_statements_for_tables_and_source(postgresql):
    url = postgresql.fresh()
    broker = PostgreSQLBroker(url)
    with pytest.raises(ConfigError, match=r"(?s)no tables.*'orders'") as caught:
        broker.open(["orders"], create=False)
    with psycopg.connect(url, autocommit=True) as tool:
        tool.execute(statements())
        assert "unpoison migrate --sql" in str(caught.value)
        for _ in range(2):  # it may be run again
            tool.execute(str(caught.value).splitlines()[-1])
    broker.open(["orders"], create=False)
    broker.publish(given.messages("orders", 1))
    assert len(broker.fetch("orders", 1)) == 1
    with pytest.raises(ConfigError, match="Source 'parcels' does not exist") as missing:
        broker.open(["parcels"], create=False)
    assert str(missing.value).splitlines()[-1].startswith("with made as")
    broker.close()
