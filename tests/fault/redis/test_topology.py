"""Does the script for Redis create and grant all that an app needs? Run by redis-cli."""

import uuid
from urllib.parse import urlsplit

import pytest
import redis as client

from tests.fault.planned_topology import Shop, run_script
from unpoison.brokers import needs_for
from unpoison.brokers.redis.broker import RedisBroker


@pytest.fixture
def place(redis):
    """An empty database, and a user who may do nothing: the administrator's URL, the user's own, and its name."""
    url, name = redis.fresh(), f"shop-{uuid.uuid4().hex[:8]}"
    with client.Redis.from_url(url) as tool:
        tool.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret")
        parts = urlsplit(url)
        own = parts._replace(netloc=f"{name}:secret@{parts.hostname}:{parts.port}").geturl()
        yield url, own, name
        tool.execute_command("ACL", "DELUSER", name)


@pytest.mark.long
def test_an_app_with_exactly_the_printed_rights_can_do_everything(place, tmp_path):
    administrators, url, name = place
    shop = Shop(tmp_path, ("orders", "mail[eu]*"))
    printed = shop.plan(administrators, "--user", name)
    run_script(printed.text, tmp_path)
    run_script(printed.text, tmp_path)  # nothing happens
    shop.uses_everything(url)
    with client.Redis.from_url(url) as tool, pytest.raises(client.exceptions.NoPermissionError):
        tool.get("mail[eu]x")
    assert "Nothing is missing here." in shop.plan(administrators, "--user", name).text


def test_only_what_is_missing_is_printed(place):
    administrators, _, name = place
    named = "group", "entry", "rights"
    assert tuple(step.kind for step in needs_for(administrators, ["orders"], name).missing()) == named
    broker = RedisBroker(administrators)
    broker.open(["orders"])
    broker.close()
    assert [step.kind for step in needs_for(administrators, ["orders"], name).missing()] == ["rights"]
    assert [step.kind for step in needs_for(f"{administrators}?list=mail", ["mail"]).missing()] == ["entry"]


def test_what_redis_refuses_ends_the_script(place, tmp_path):
    administrators, _, name = place
    with client.Redis.from_url(administrators) as tool:
        tool.set("orders", "a string")
    script = Shop(tmp_path).plan(administrators, "--user", name).text
    with pytest.raises(AssertionError, match=r"XGROUP CREATE orders unpoison 0 MKSTREAM: .*WRONGTYPE"):
        run_script(script, tmp_path)
