"""The `nats` program, as far as the scripts of plan-topology use it: run by path, it speaks to the real server.

The real program is written in Go and comes with no package of Python's. Shown here is that the server takes the configurations,
and not that the real program reads its options so: they are those of its documentation.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import nats


def asked(words: list[str]) -> tuple[str, str, bytes]:
    """The server, the subject to ask, and the question."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("kind", choices=("stream", "consumer"))
    parser.add_argument("verb", choices=("info", "add"))
    parser.add_argument("names", nargs="+")
    parser.add_argument("--config", type=Path)
    given = parser.parse_args(words)
    name = ".".join(given.names)
    if given.verb == "info":
        return given.server, f"$JS.API.{given.kind.upper()}.INFO.{name}", b""
    config = json.loads(given.config.read_text())
    if given.kind == "stream":
        return given.server, f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode()
    question = {"stream_name": given.names[0], "config": config, "action": "create"}
    return given.server, f"$JS.API.CONSUMER.DURABLE.CREATE.{name}", json.dumps(question).encode()


async def answered(server: str, subject: str, question: bytes) -> dict:
    login = {"user": os.environ["NATS_USER"], "password": os.environ["NATS_PASSWORD"]}
    connection = await nats.connect(server, allow_reconnect=False, **login)
    try:
        return json.loads((await connection.request(subject, question, timeout=10)).data)
    finally:
        await connection.close()


if __name__ == "__main__":
    answer = asyncio.run(answered(*asked(sys.argv[1:])))
    sys.exit(f"nats: error: {answer['error']}" if "error" in answer else 0)
