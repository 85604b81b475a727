"""Runs the consumers of an app together, and stops them.

Each source has a consumer in a thread of its own. SIGTERM or SIGINT drains them; a second signal ends the grace at once.
"""

import gc
import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from unpoison.brokers import broker_for, check_sources, leaves_cycles, losses_for
from unpoison.decide.options import ConsumerOptions, Settings
from unpoison.errors import BrokerUnavailable, ConfigError, UnpoisonError
from unpoison.flow.collecting import Collecting
from unpoison.flow.consumer import Consumer
from unpoison.flow.ending import IdleAgreement
from unpoison.flow.runnable import RunnableApp
from unpoison.flow.store_link import StoreLink
from unpoison.flow.suspects import ExclusiveRun
from unpoison.flow.view import SourceView
from unpoison.observing.health import Phase, SourceHealth
from unpoison.observing.monitoring import Exposed, Monitoring, exposed_by
from unpoison.port.broker import Broker, Finding
from unpoison.port.broker_url import masked
from unpoison.port.findings import refuse_losses
from unpoison.reporting.observer import Observer
from unpoison.reporting.report import Report, RunResult, Tally
from unpoison.store.choice import store_for
from unpoison.workers.interface import Bell
from unpoison.workers.pooled_worker import reap

if TYPE_CHECKING:
    from unpoison.observing.metrics import Metrics

log = logging.getLogger("unpoison")

LOOK = 0.2
"""Seconds between two looks at the consumers' threads and for processes that ended below this one."""


PAUSE_LIMIT = 60.0
"""Seconds that a run with --until-empty lets a source be paused. A batch job must end; a service waits as long as it takes."""

COLLECT_AFTER = 20_000
"""Objects after which the garbage collector looks for cycles, while consumers run that leave none: thousands of messages are read
ahead, and with the usual 700 such a consumer spends a tenth of its time looking at them again and again. Consumers that do leave
cycles would keep hundreds of megabytes of unused bodies."""


class Run:
    """All consumers of some apps, from start to stop."""

    def __init__(
        self,
        apps: Sequence[RunnableApp],
        *,
        is_dedicated: bool = False,
        observers: Sequence[Observer] = (),
        exposed: Exposed | None = None,
        make_metrics: "Callable[[str | None], Metrics] | None" = None,
    ) -> None:
        """`exposed` is where it is to be seen from outside, where its apps do not say so. `make_metrics` gets the version of the
        user's code."""
        self._apps = apps
        self._options = _named(apps)
        self._exclusive = ExclusiveRun()
        self._idle_agreement = IdleAgreement(sum(len(app.consumers()) for app in apps))
        self._consumers: list[Consumer] = []
        self._crashed: list[BaseException] = []
        self._stopped = threading.Event()
        self.stopped_by: int | None = None
        """The signal that ended it, if one did."""
        self._happened: SimpleQueue[int | None] = SimpleQueue()
        """Each signal, and None for each consumer that ended."""
        self._reaps_everything = is_dedicated or os.getpid() == 1
        self._grace = max((app.settings.grace for app in apps), default=0.0)
        _check(apps)
        settings = [app.settings for app in apps]
        where = exposed_by(settings, exposed or Exposed())
        is_measured = bool(observers) or where.port is not None
        self._views = {
            (id(app), each.source): SourceView(app.settings, each, app.imported_at, is_observed=is_measured)
            for app in apps
            for each in self._options[id(app)]
        }
        sources = [view.health for view in self._views.values()]
        metrics = None if make_metrics is None else partial(make_metrics, _versions(settings))
        self._monitoring = Monitoring(where, sources, self._stopped.is_set, metrics)
        labels = {id(app): {each.source: each.label for each in self._options[id(app)] if each.label} for app in apps}
        heard_by = (*observers, *self._monitoring.observers)
        self._reports = {id(app): Report(app.reference, labels[id(app)], heard_by) for app in apps}

    def tallies(self, *apps: RunnableApp) -> dict[str, Tally]:
        """Of these apps, or of all: by the name of each source that anything happened to."""
        counts: dict[str, Tally] = {}
        for app in apps or self._apps:
            counts |= self._reports[id(app)].tallies()
        return counts

    def result(self) -> RunResult:
        """What was done, also for sources that nothing happened to."""
        return RunResult({name: Tally() for name in self.names()} | self.tallies(), self.stopped_by)

    def names(self) -> list[str]:
        """Of all sources; each is named with its app where two apps have a source of the same name."""
        return [options.name for app in self._apps for options in self._options[id(app)]]

    def serve(self, *, until_empty: bool = False) -> None:
        """Consume until stopped. Blocks; signals are caught only if this is the main thread."""
        threads = [
            threading.Thread(target=self._consume_and_tell, args=(app, options, until_empty), name=f"unpoison-{options.source}")
            for app in self._apps
            for options in self._options[id(app)]
        ]
        for (app_id, source), view in self._views.items():
            self._reports[app_id].watch(source, view)
        before = self._catch_signals()
        collected = gc.get_threshold()
        if not any(leaves_cycles(app.settings.url) or _runs_handlers_here(app) for app in self._apps):
            gc.set_threshold(COLLECT_AFTER, *collected[1:])
        try:
            self._monitoring.start()
            for thread in threads:
                thread.start()
            running = len(threads)
            while running:
                running -= self._wait()
                reap(everything=self._reaps_everything)
                if until_empty:
                    self._end_if_paused()
            for thread in threads:
                thread.join()
        finally:
            gc.set_threshold(*collected)
            for number, handler in before.items():
                signal.signal(number, handler)
            for app in self._apps:
                app.close()
                self._reports[id(app)].close()
            self._monitoring.close()
        if self._crashed:
            raise _in_one(self._crashed)

    def _wait(self) -> bool:
        """Wait for a short while, or until something happened. True if a consumer ended."""
        try:
            number = self._happened.get(timeout=LOOK)
        except Empty:
            return False
        if number is not None:
            self._stop_by(number)
        return number is None

    def _stop_by(self, number: int) -> None:
        is_first = not self._stopped.is_set()
        what = f"draining for up to {self._grace:g} s; a second signal stops at once." if is_first else "stopping now."
        log.info("%s: %s", signal.Signals(number).name, what, extra={"event": "stop"})
        self.stopped_by = self.stopped_by or number
        self.stop(None if is_first else 0.0)

    def stop(self, grace: float | None = None) -> None:
        """Drain: running messages finish within the grace, the others go back uncounted."""
        self._stopped.set()
        self._monitoring.look_now()
        for consumer in list(self._consumers):
            consumer.stop(self._grace if grace is None else grace)

    def _end_if_paused(self) -> None:
        pauses = [pause for report in self._reports.values() if (pause := report.longest_pause()) is not None]
        if not pauses or self._stopped.is_set():
            return
        source, seconds, why = max(pauses, key=itemgetter(1))
        if seconds < PAUSE_LIMIT:
            return
        self._crashed.append(
            BrokerUnavailable(
                f"Source {source!r} has been paused for {seconds:.0f} s, so this run ends before the source is empty; no message "
                f"is lost. {why} Fix that and run it again."
            )
        )
        self.stop(0)

    def _consume_and_tell(self, app: RunnableApp, options: ConsumerOptions, until_empty: bool) -> None:
        try:
            self._consume(app, options, until_empty)
        finally:
            self._happened.put(None)

    def _consume(self, app: RunnableApp, options: ConsumerOptions, until_empty: bool) -> None:
        bell, link, collecting, view = Bell(), None, None, self._views[id(app), options.source]
        try:
            view.health.enters(Phase.OPENING)
            link = _link(app.settings, options.source, bell)
            consumer = self._start(app, options, bell, link, view)
            if consumer is None:
                return
            if app.settings.collect:
                collecting = Collecting(app.settings, options.source)
                collecting.start()
            self._consumers.append(consumer)
            view.begin(consumer)
            if self._stopped.is_set():
                consumer.stop(0)
            consumer.run(until_empty=until_empty)
        except BaseException as error:  # raised by serve(): the others must not go on as if nothing had happened
            self._crashed.append(error)
            self.stop()
        finally:
            view.end()
            for each in (link, collecting):
                if each is not None:
                    each.close()

    def _start(
        self, app: RunnableApp, options: ConsumerOptions, bell: Bell, link: StoreLink | None, view: SourceView
    ) -> Consumer | None:
        broker, report = broker_for(app.settings.url), self._reports[id(app)]
        if not self._open(app.settings, options, broker, bell, report, view.health):
            return None
        try:
            view.health.enters(Phase.STARTING)
            if link is not None:
                link.start()
            started = app.start_workers(options, broker, bell, view.numbers)
        except BaseException:
            broker.close()
            raise
        report.started(options.source, masked(app.settings.url), started.where)
        view.health.problem = started.problem
        view.health.enters(Phase.RUNNING)
        return Consumer(
            options,
            broker,
            started.workers,
            report,
            started.hooks,
            bell.ring,
            exclusive=self._exclusive,
            idle_agreement=self._idle_agreement,
            name=_name(),
            code_version=app.settings.code_version,
            link=link,
            last_turn=view.health.last_turn,
            numbers=view.numbers,
        )

    def _open(
        self, settings: Settings, options: ConsumerOptions, broker: Broker, bell: Bell, report: Report, health: SourceHealth
    ) -> bool:
        """Wait for the broker if it is not there. False if a stop came first. It is tried once in any case: where one source
        lacks something, the error names what the others lack too."""
        is_first = True
        while is_first or not self._stopped.is_set():
            is_first = False
            health.last_turn.note()
            try:
                found = broker.open([options.source], create=settings.create, ring=bell.ring)
                self._look(settings, options, [*found, *_losses(settings.url, options.source)])
            except BrokerUnavailable as error:
                report.paused(options.source, error)
                self._stopped.wait(1.0)
            except BaseException:
                broker.close()
                raise
            else:
                report.resumed(options.source)
                if not self._stopped.is_set():
                    return True
                broker.close()
        return False

    def _look(self, settings: Settings, options: ConsumerOptions, found: Sequence[Finding]) -> None:
        """Log what was found at the broker, and do not start where it would lose messages."""
        refuse_losses(options.source, found, settings.accept)
        for finding in dict.fromkeys(found):
            extra = {"event": "finding", "source": options.source, "finding": finding.name}
            log.warning("Source %r: %s %s", options.name, finding.problem, finding.fix, extra=extra)

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def caught(number: int, _: FrameType | None) -> None:
            self._happened.put(number)  # no more: a second signal can interrupt whatever is done here

        return {number: signal.signal(number, caught) for number in (signal.SIGTERM, signal.SIGINT)}


class InProcessConsumer:
    """Consumers that run in a thread of the application itself, where nothing can be isolated (memory://)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._thread = threading.Thread(target=self._run.serve, name="unpoison-consumers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._run.stop()
        self._thread.join()


def _check(apps: Sequence[RunnableApp]) -> None:
    if not any(app.consumers() for app in apps):
        raise ConfigError(
            "The app has no consumer, so there is nothing to run. Decorate a function with @app.consumer('orders')."
        )
    for url in {app.settings.url for app in apps}:
        check_sources(url, {each.source for app in apps if app.settings.url == url for each in app.consumers()})


def _versions(settings: Sequence[Settings]) -> str | None:
    """Of the users' code: one version, unless apps of several are run together."""
    return ", ".join(dict.fromkeys(each.code_version for each in settings if each.code_version)) or None


def _name() -> str:
    """What this process is called in dead letters and among the consumers of a fleet."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _link(settings: Settings, source: str, bell: Bell) -> StoreLink | None:
    """The connection of a consumer to its fleet, if the app has a store."""
    if not settings.store:
        return None
    store = store_for(settings.store)
    return StoreLink(store, source, _name(), settings.code_version, bell.ring, create=settings.create)


def _named(apps: Sequence[RunnableApp]) -> dict[int, list[ConsumerOptions]]:
    """The consumers of each app. Where two apps have a source of the same name, each of them is named with its app."""
    times = Counter(options.source for app in apps for options in app.consumers())
    return {
        id(app): [
            replace(options, label=f"{options.source} ({app.reference})") if times[options.source] > 1 else options
            for options in app.consumers()
        ]
        for app in apps
    }


def _in_one(errors: Sequence[BaseException]) -> BaseException:
    """What ended a run. What several sources lack becomes one error, so that all of it can be created before the next start."""
    texts = dict.fromkeys(str(error) for error in errors if isinstance(error, ConfigError))
    return ConfigError("\n\n".join(texts)) if len(texts) > 1 and isinstance(errors[0], ConfigError) else errors[0]


def _losses(url: str, source: str) -> Sequence[Finding]:
    """Settings that lose messages of this source. A user without the right to see them may still consume."""
    try:
        return losses_for(url, source)
    except UnpoisonError as error:
        log.info("Source %r was not checked for settings that lose messages: %s", source, error, extra={"event": "finding"})
        return ()


def _runs_handlers_here(app: RunnableApp) -> bool:
    return any(options.isolation != "process" for options in app.consumers())
