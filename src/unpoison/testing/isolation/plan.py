"""How do the consumer of a promise, its template and its workers know what they are to do? From one environment variable."""

import os
from typing import Any

import msgspec

from unpoison.brokers import ADAPTERS, Adapter

VARIABLE = "ISOLATION_PLAN"
SOURCE = "orders"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of one scene share. `token` makes them recognisable among all processes of the machine.

    `adapters` are those that the promise's own process knows: other processes do not know one that is not part of unpoison.
    """

    url: str
    folder: str
    token: str
    app: str
    style: str = "sync"
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    adapters: dict[str, Adapter] = {}
    also: dict[str, Any] = {}

    def as_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("UNPOISON_")}
        return kept | {VARIABLE: msgspec.json.encode(self).decode()}


def current() -> Plan:
    """The plan of this process, with its adapters made known here."""
    plan = msgspec.json.decode(os.environ[VARIABLE], type=Plan)
    ADAPTERS.update(plan.adapters)
    return plan
