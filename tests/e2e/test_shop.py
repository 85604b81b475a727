"""The example shop does the same on every broker: only its URL changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers_plugin import OWNER, shared_or_skip

SHOP = Path(__file__).parents[2] / "examples" / "shop"
SERVERS = ("postgresql", "rabbitmq", "redis", "nats", "kafka", "elasticmq")


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=[pytest.mark.long, pytest.mark.servers(name)]) for name in SERVERS)])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    return shared_or_skip(request.param, request.config.stash[OWNER]).fresh()


def test_two_orders_are_dead_letters_and_three_customers_hear_of_theirs(url, tmp_path):
    for name in ("shop.py", "orders.jsonl"):
        shutil.copy(SHOP / name, tmp_path)

    def unpoison(*arguments: str) -> str:
        command, environment = [sys.executable, "-m", "unpoison", *arguments], {**os.environ, "SHOP_URL": url}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=120)
        return ran.stdout

    unpoison("publish", url, "orders", "--file", "orders.jsonl")
    said = unpoison("run", "shop:app", "--until-empty")
    assert said.count("is on its way") == 3
    letters = json.loads(unpoison("dlq", "ls", "--app", "shop:app", "--json"))
    assert sorted(letter["classification"] for letter in letters) == ["invalid", "permanent"]
