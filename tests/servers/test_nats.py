"""Does NATS give each test an account of its own, and are its two servers two versions?"""

import asyncio

import nats as client
import pytest

pytestmark = pytest.mark.servers("nats", "nats-2.9")


async def _store(url: str) -> None:
    connection = await client.connect(url, allow_reconnect=False)
    await connection.jetstream().add_stream(name="kept", subjects=["kept"])
    await connection.jetstream().publish("kept", b"here")
    await connection.close()


async def _stored(url: str) -> list[str]:
    connection = await client.connect(url, allow_reconnect=False)
    found = [
        (await connection.jsm().get_msg(each.config.name, 1)).data.decode() for each in await connection.jsm().streams_info()
    ]
    await connection.close()
    return found


def test_fresh_accounts_do_not_see_each_other(nats):
    asyncio.run(_store(nats.fresh()))
    assert asyncio.run(_stored(nats.fresh())) == []


def test_the_two_are_different_versions(nats, nats_2_9):
    assert tuple(map(int, nats.version().split(".")[:2])) >= (2, 12)
    assert nats.version() != nats_2_9.version()
