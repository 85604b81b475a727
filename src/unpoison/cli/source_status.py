"""How is each source: what waits at the broker, who consumes it, and what stands in the way?

Two places are asked, the broker and the store, and neither is changed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from unpoison.brokers import sources_for
from unpoison.cli.fleet import opened_broker
from unpoison.errors import ConfigError
from unpoison.model.dead_letter import iso
from unpoison.port.at_broker import AtBroker, ask
from unpoison.port.broker_url import masked, masked_text
from unpoison.port.table_versions import NotCreated
from unpoison.store.port import OPERATOR, PAUSING, ConsumerSign, Pause, SharedCircuit, Store

RUNNING = "running"


class InStore(msgspec.Struct, frozen=True):
    """What the store says about one source, or about all of them."""

    pauses: Sequence[Pause] = ()
    circuits: Sequence[SharedCircuit] = ()
    consumers: Sequence[ConsumerSign] = ()
    dead: Mapping[str, int] = {}
    """How many letters wait there, by source."""

    def of(self, source: str) -> "InStore":
        return InStore(
            [each for each in self.pauses if each.source == source],
            [each for each in self.circuits if each.source == source],
            [each for each in self.consumers if each.source == source],
            {source: self.dead.get(source, 0)},
        )

    def sources(self) -> set[str]:
        return (
            {each.source for each in self.pauses}
            | {each.source for each in self.circuits}
            | {each.source for each in self.consumers}
            | set(self.dead)
        )


class SourceStatus(msgspec.Struct, frozen=True):
    """Everything known about one source at the time `now`."""

    source: str
    now: float
    broker: AtBroker | None = None
    problem: str = ""
    """Why the broker says nothing about it."""
    store: InStore | None = None
    """None where no store could be asked."""

    @property
    def state(self) -> str:
        if self.store is None:
            return "unknown"
        if any(self.holds(each) for each in self.store.pauses):
            return "paused"
        if self.is_outage:
            return "outage"
        return RUNNING if self.store.consumers else "no consumer"

    def holds(self, pause: Pause) -> bool:
        """Whether a pause stops the source. One because of dead letters is about one version of the code, and lasts while
        consumers of that version live: those of another one may go on."""
        consumers = () if self.store is None else self.store.consumers
        others = [each for each in consumers if each.code_version != pause.code_version]
        return pause.kind == OPERATOR or not any(each.state == RUNNING for each in others)

    @property
    def is_outage(self) -> bool:
        """Whether an outage pauses the source. Otherwise only the messages that need what is down wait."""
        circuits = () if self.store is None else self.store.circuits
        return any(each.state == PAUSING and not self.is_recovering(each) for each in circuits)

    def is_recovering(self, circuit: SharedCircuit) -> bool:
        """Whether a probe has succeeded in an outage that pauses the source: the consumer that made it starts messages again. The
        store hears that the outage is over when enough of them have succeeded."""
        consumers = () if self.store is None else self.store.consumers
        return circuit.state == PAUSING and any(each.consumer == circuit.by and each.state == RUNNING for each in consumers)

    @property
    def is_held(self) -> bool:
        """Whether a person has paused it: then nothing is tried either."""
        return self.store is not None and any(each.kind == OPERATOR for each in self.store.pauses)

    @property
    def ready(self) -> int:
        return 0 if self.broker is None else self.broker.depth.ready

    @property
    def dead(self) -> int | None:
        """How many letters wait, in the DLQ of the broker and in the store."""
        return (
            None if self.broker is None else self.broker.depth.dead + (self.store.dead.get(self.source, 0) if self.store else 0)
        )

    @property
    def paused_for(self) -> float:
        """Seconds since the oldest pause began that stops the source, or the oldest outage that pauses it; 0 if there is none."""
        if self.store is None:
            return 0.0
        began = [each.since for each in self.store.pauses if self.holds(each)]
        began += [each.since for each in self.store.circuits if each.state == PAUSING]
        return self.now - min(began) if began else 0.0

    @property
    def deleted_in(self) -> float | None:
        """Seconds until the first waiting message may be deleted, once half of its time is over.

        Where the broker does not know the oldest message, none is taken to be older than the pause in which it waits.
        """
        if self.broker is None or self.broker.deleted_after is None or not self.broker.depth.ready:
            return None
        limit, age = self.broker.deleted_after, self.paused_for if self.broker.oldest is None else self.broker.oldest
        return max(0.0, limit - age) if age >= limit / 2 else None

    def as_json(self) -> dict[str, Any]:
        depth = None if self.broker is None else self.broker.depth
        return {
            "source": self.source,
            "state": self.state,
            "ready": depth and depth.ready,
            "delayed": depth and depth.delayed,
            "running": depth and depth.leased,
            "dead": self.dead,
            "oldest_seconds": self.broker and self.broker.oldest,
            "deleted_after_seconds": self.broker and self.broker.deleted_after,
            "deleted_in_seconds": self.deleted_in,
            "problem": masked_text(self.problem) or None,
            "pauses": self.store and [dated(each) for each in self.store.pauses],
            "outages": self.store and [dated(each) for each in self.store.circuits],
            "consumers": self.store and [dated(each) for each in self.store.consumers],
        }


def dated(value: Pause | SharedCircuit | ConsumerSign) -> dict[str, Any]:
    """As JSON has it: times as text, and without what only consumers need."""
    found: dict[str, Any] = msgspec.to_builtins(value)
    found |= {name: iso(found[name]) for name in ("since", "next_probe_at", "heard_at", "started_at", "seen_at") if name in found}
    return {name: each for name, each in found.items() if name not in ("source", "revision", "rate")}


def look(store: Store) -> InStore:
    """All that the store knows."""
    return InStore(store.pauses(), store.circuits(), store.consumers(), store.waiting_letters())


def known_sources(url: str, found: InStore | None) -> list[str]:
    """All for which the broker or the store was used."""
    known = set() if found is None else found.sources()
    try:
        known.update(sources_for(url))
    except ConfigError:  # not every broker can list them
        if not known:
            raise
    return sorted(known)


def statuses(url: str, sources: Sequence[str], found: InStore | None, now: float) -> list[SourceStatus]:
    """Raises BrokerUnavailable if the broker is away. A source that it does not have gets a problem."""
    try:
        with opened_broker(url, sources) as broker:
            told: dict[str, AtBroker | str] = {source: ask(broker, source) for source in sources}
    except ConfigError:  # at least one of them cannot be opened
        told = {source: _ask_alone(url, source) for source in sources}
    return [_status(source, now, told[source], found) for source in sources]


def _status(source: str, now: float, told: AtBroker | str, found: InStore | None) -> SourceStatus:
    store = None if found is None else found.of(source)
    if isinstance(told, str):
        return SourceStatus(source, now, None, told, store)
    return SourceStatus(source, now, told, "", store)


def _ask_alone(url: str, source: str) -> AtBroker | str:
    try:
        with opened_broker(url, [source]) as broker:
            return ask(broker, source)
    except NotCreated:
        return f"There is nothing of unpoison at {masked(url)!r} yet; the first publish or run creates it. Check the URL."
    except ConfigError as error:
        return str(error)
