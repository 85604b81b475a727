"""Collects the dead letters of one source beside its consumer, in a thread and on connections of its own."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from unpoison.brokers import dead_letters_for
from unpoison.decide.options import Settings
from unpoison.errors import UnpoisonError
from unpoison.model.events import fields
from unpoison.port.broker import DeadLetters
from unpoison.port.broker_url import dlqs_of
from unpoison.store.letters.collector import Collector
from unpoison.store.letters.expiry import Expiry
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.rules_in_force import check_redacts
from unpoison.store.letters.sql_letters import letters_for

log = logging.getLogger("unpoison")

EVERY = 2.0
"""Seconds between two looks at the DLQ."""
INDEX_FOR = 1.0
"""Seconds that are spent on the index of texts after each look. It may be behind: a search is slower then, and as right."""
ENDS_WITHIN = 10.0
"""Seconds for which the end of a consumer waits for the batch that is being moved. It can be cut off at any moment."""


class Collecting:
    """Moves what comes into the DLQ of a source, until it is closed. Nothing waits for it, and it fails for nobody: what cannot
    be moved stays in the DLQ, one line says why, and it is tried again."""

    def __init__(self, settings: Settings, source: str) -> None:
        check_redacts(settings.redact)
        self._settings, self._source = settings, source
        self._letters: DeadLetters | None = None
        self._store: LetterStore | None = None
        self._collector: Collector | None = None
        self._expiry = Expiry(settings.expire)
        self._said = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"unpoison-collector-{source}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=ENDS_WITHIN)

    def _run(self) -> None:
        while not self._closed.is_set():
            self.step(lambda: not self._closed.is_set())
            self._closed.wait(EVERY)
        until = time.monotonic() + ENDS_WITHIN / 2
        self.step(lambda: time.monotonic() < until)  # what the consumer has given up last
        self.disconnect()

    def step(self, wanted: Callable[[], bool]) -> None:
        """Move what is there, for as long as that is wanted."""
        try:
            self._connected().collect(wanted=wanted)
            if self._store is not None and wanted():
                self._expiry.look(self._store)
                self._store.index_text(INDEX_FOR)
        except UnpoisonError as error:
            self._fails(str(error))
        except Exception as error:
            extra = fields("collector-fault", source=self._source)
            log.exception("Source %r: a fault of unpoison's own.", self._source, extra=extra)
            self._fails(repr(error))
        else:
            if self._said:
                extra = fields("collected-again", source=self._source)
                log.info("Source %r: dead letters are collected again.", self._source, extra=extra)
            self._said = ""

    def _connected(self) -> Collector:
        if self._letters is None:
            self._letters = dead_letters_for(self._settings.url, self._source, create=self._settings.create)
        if self._store is None:
            self._store = letters_for(self._settings.store or "", self._settings.redact)
            self._store.open(create=self._settings.create)
            self._store.regroup()
        if self._collector is None:
            place = dlqs_of(self._settings.url).get(self._source, "")
            self._collector = Collector(self._letters, self._store, self._source, place)
        return self._collector

    def _fails(self, why: str) -> None:
        self.disconnect()
        if not self._said:
            text = "Source %r: dead letters stay in the DLQ for now, and none is lost: %s"
            log.warning(text, self._source, why, extra=fields("not-collected", source=self._source))
        self._said = why

    def disconnect(self) -> None:
        store, letters = self._store, self._letters
        self._store = self._letters = self._collector = None
        with suppress(UnpoisonError):
            if store is not None:
                store.close()
        with suppress(UnpoisonError):
            if letters is not None:
                letters.broker.close()
