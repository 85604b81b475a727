"""What about the server itself, as far as it tells, puts messages at risk?

How often it syncs to disk is told only by its monitoring port: looked for on the host of the URL at 8222, or where
`monitor=` says.
"""

import json
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from unpoison.brokers.nats.link import Link
from unpoison.brokers.nats.topology import SCHEDULES_SINCE
from unpoison.port import findings
from unpoison.port.broker import Finding

NAMES = ("sync-delayed", "storage-nearly-full", "no-schedules")
NEARLY = 0.9
PATIENCE = 3.0
SECOND = 1_000_000_000


def findings_of(link: Link) -> Iterator[Finding]:
    yield from _of_version(link)
    yield from _of_space(link.ask("INFO", what="looking at the account"))
    yield from _of_disk(link)


def _of_version(link: Link) -> Iterator[Finding]:
    if link.version < SCHEDULES_SINCE:
        version = ".".join(map(str, link.version))
        yield Finding(
            "no-schedules",
            f"NATS {version} delivers nothing at its time by itself. Retries and delayed messages wait in a stream all the same, "
            f"but move on only while a consumer of unpoison runs.",
            "Run NATS 2.12 or later; streams named *_RETRIES from before keep to the old way until they are made anew.",
        )


def _of_space(account: dict[str, Any]) -> Iterator[Finding]:
    used, most = account.get("storage", 0), account.get("limits", {}).get("max_storage", -1)
    if 0 < most < used / NEARLY:
        yield Finding(
            "storage-nearly-full",
            f"This account uses {used:,} of {most:,} bytes on disk. When none are left nothing can be published, retried or "
            f"dead-lettered, and every source stands still.",
            "Raise max_file for the account, or see what takes the space: nats stream report",
        )


def _of_disk(link: Link) -> Iterator[Finding]:
    first = urlsplit(link.address.servers[0])
    url = link.address.monitor or f"http://{first.hostname}:8222"
    try:
        with urlopen(f"{url}/varz", timeout=PATIENCE) as answer:  # noqa: S310 - an address that the user gave
            config = json.loads(answer.read())["jetstream"]["config"]
    except (URLError, OSError, HTTPException, ValueError, KeyError) as error:
        fix = "Start the server with -m 8222, or name its monitoring port in the URL: ?monitor=http://host:8222"
        yield findings.cannot_look("how often the server syncs to disk", f"{url} does not answer: {error}.", fix)
        return
    if not config.get("sync_always"):
        interval = config.get("sync_interval", 120 * SECOND) / SECOND
        yield Finding(
            "sync-delayed",
            f"The server syncs to disk every {interval:g} s: a power cut of all its copies takes what was confirmed since. "
            f"A kill of the server alone takes nothing.",
            "In a cluster keep several copies: ?replicas=3. On a single server, if that is too much:\n"
            "jetstream { sync_interval: always }",
        )
