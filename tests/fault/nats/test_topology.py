"""Does the script for NATS create and grant all that an app needs?"""

import json
import sys
from pathlib import Path

import pytest

from tests.fault.planned_topology import Shop, run_script, with_programs
from unpoison.brokers import needs_for
from unpoison.brokers.nats.broker import NATSBroker

PROGRAM = Path(__file__).with_name("nats_program.py")
ADMINISTRATOR = {"user": "test", "password": "test"}


def accounts(*users):
    return {"accounts": f"{{ shop: {{ jetstream: enabled, users: {json.dumps(users)} }} }}"}


def run_as_administrator(script, folder):
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "nats").write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} "$@"\n')
    (programs / "nats").chmod(0o755)
    return run_script(script, folder, PATH=with_programs(str(programs)), NATS_USER="test", NATS_PASSWORD="test")


@pytest.mark.long
def test_an_app_with_exactly_the_printed_permissions_can_do_everything(private_server, tmp_path):
    server = private_server("nats")
    server.stop()
    server.start(accounts(ADMINISTRATOR))
    shop = Shop(tmp_path, ("orders", "mail.eu"))
    administrators = f"nats://test:test@127.0.0.1:{server.port}?ack_wait=2"
    printed = shop.plan(administrators, "--user", "shop")
    told = run_as_administrator(printed.text, tmp_path)
    assert [step.kind for step in needs_for(administrators, shop.sources, "shop").missing()] == ["rights"]
    server.stop()
    server.start(accounts(ADMINISTRATOR, json.loads(told) | {"password": "secret"}))
    url = f"nats://shop:secret@127.0.0.1:{server.port}?ack_wait=2"
    shop.uses_everything(url)
    assert shop.do(url, "doctor", "shop:app", code=None).err == ""
    # The user may look at its own, and what is there is not printed for it either.
    assert [step.kind for step in needs_for(url, shop.sources).missing()] == ["rights"]


def test_only_what_is_missing_is_printed_and_an_existing_stream_is_used(nats):
    url = nats.fresh()
    first = [(step.kind, step.name) for step in needs_for(url, ["orders"]).missing()]
    assert first[:3] == [("stream", "orders"), ("stream", "orders_unpoison_RETRIES"), ("stream", "orders_DLQ")]
    assert first[3:] == [
        ("consumer", "unpoison of orders"),
        ("consumer", "again of orders_unpoison_RETRIES"),
        ("consumer", "suspects of orders_unpoison_RETRIES"),
        ("consumer", "unpoison of orders_DLQ"),
        ("rights", "test" + url.partition("test")[2].partition(":")[0]),
    ]
    broker = NATSBroker(url)
    broker.open(["orders"])
    assert [step.kind for step in needs_for(url, ["orders"]).missing()] == ["rights"]
    wide = {"name": "SHOP", "subjects": ["shop.>"], "storage": "file"}
    broker.client.connection().ask("STREAM.CREATE.SHOP", wide, "making a stream")
    broker.close()
    missing = [step.name for step in needs_for(url, ["shop.mail"]).missing()]
    assert missing[:3] == ["shop_mail_unpoison_RETRIES", "shop_mail_DLQ", "unpoison_shop_mail of SHOP"]
