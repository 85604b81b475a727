"""The metrics of a consumer process, for Prometheus. docs/metrics.md says what each of them means.

metrics = Metrics(version)
Run(apps, observers=[metrics]).serve()
body, content_type = metrics.expose(accept)      from any thread, at any time
"""

from collections.abc import Sequence

from unpoison.control.changes import Change, Opened
from unpoison.errors import MissingExtra, UnpoisonError
from unpoison.model.failure import Failure
from unpoison.model.message import Delivery
from unpoison.observing.counts import Dependencies, SourceCounts
from unpoison.observing.look import Watched
from unpoison.observing.polling import EVERY, BrokerDepths, StoredLetters
from unpoison.reporting.consumer_state import ConsumerView
from unpoison.reporting.observer import Event, Observer


class Metrics(Observer):
    """Counts what it is told, and looks at everything else when it is asked. Each run has its own.

    `every`: seconds between two reads of depths, each over a connection of its own to the broker and to the store.
    """

    def __init__(self, version: str, code_version: str | None = None, *, every: float = EVERY) -> None:
        try:
            from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector  # noqa: PLC0415
            from prometheus_client.exposition import choose_encoder  # noqa: PLC0415 - takes 0.1 s, and is an extra

            from unpoison.observing.families import Families  # noqa: PLC0415 - needs it too
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise MissingExtra("The metrics of a consumer", "prometheus-client", "metrics") from error
        self._every, self._choose_encoder = every, choose_encoder
        self._watched: dict[str, Watched] = {}
        self._depths: dict[str, BrokerDepths] = {}
        self._letters: dict[str, StoredLetters] = {}
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._registry.register(Families(self._watched, version, code_version or ""))

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in the form that was asked for by this Accept header, and the content type of that form."""
        encode, content_type = self._choose_encoder(accept)
        return encode(self._registry), content_type

    def watch(self, source: str, view: ConsumerView) -> None:
        depths = self._depths.get(view.url) or BrokerDepths(view.url, self._every)
        self._depths[view.url] = depths
        depths.watch(view)
        letters = None
        if view.store:
            letters = self._letters.get(view.store) or StoredLetters(view.store, self._every)
            self._letters[view.store] = letters
            letters.watch(view)
        self._watched[source] = Watched(view, SourceCounts(), Dependencies(view.depends_on), depths, letters)

    def close(self) -> None:
        """Ends the reads of depths. What was counted can still be exposed."""
        for depths in self._depths.values():
            depths.close()
        for letters in self._letters.values():
            letters.close()

    def done(self, source: str, count: int) -> None:
        self._counts(source).handled += count

    def failed(self, source: str, event: Event, letter_id: str | None) -> None:
        self._counts(source).failed(event)

    def given_up(self, source: str, delivery: Delivery, failure: Failure) -> None:
        self._counts(source).pills[failure.classification] += 1

    def controlled(self, source: str, changes: Sequence[Change], now: float) -> None:
        for change in changes:
            if isinstance(change, Opened):
                self._watched[source].dependencies.is_down(change.evidence.dependency)

    def lost_broker(self, source: str, error: UnpoisonError) -> None:
        self._counts(source).is_broker_lost = True

    def found_broker(self, source: str) -> None:
        self._counts(source).is_broker_lost = False

    def _counts(self, source: str) -> SourceCounts:
        return self._watched[source].counts
