"""What users write: an `App` with its consumers, `publish`, `dlq` and `run`."""

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from unpoison.body.payload import check_several, check_text, encode, new_id, new_ids
from unpoison.body.signature import check_not_generator
from unpoison.brokers import broker_for, check_sources, dead_letters_for, resolved
from unpoison.control.options import DEFAULT_CONTROL, Admission, Breaker
from unpoison.deadletters import DLQManager
from unpoison.decide.options import DEFAULTS, Settings, settings_from
from unpoison.decide.policy import ErrorClassifier, OnDLQ, OnRetry, PoisonPillHandler, Policy
from unpoison.errors import ConfigError, PayloadError, seconds
from unpoison.flow.companion import Companion
from unpoison.flow.registration import check_has_source, check_source, register
from unpoison.flow.run import InProcessConsumer, Run
from unpoison.flow.runnable import RunnableApp
from unpoison.flow.sending import check, outgoing, published, warn_of_new_source
from unpoison.model.backoff import Backoff
from unpoison.model.message import Outgoing
from unpoison.port.broker import Broker, DeadLetters
from unpoison.port.findings import check_accepted
from unpoison.reporting.report import RunResult, Tally
from unpoison.store.choice import check_collects, store_url
from unpoison.worker.call import Registration, WorkerHooks

if TYPE_CHECKING:
    from unpoison.observing.metrics import Metrics

Function = TypeVar("Function", bound=Callable[..., Any])


class App:
    """One broker and any number of sources. Safe to use from several threads, and after a fork.

    It connects at the first publish, run or look at dead letters. An option that is left out comes from its UNPOISON_ variable
    (UNPOISON_GRACE=60), or else is the default shown in the signature. Sizes are in bytes, times in seconds or a timedelta.

    - `url`: the broker. Without it: UNPOISON_URL.
    - `store`: a SQLite file or PostgreSQL database that consumers and operators share. None: that of the broker; '': no store.
    - `collect`: whether dead letters are moved from the DLQ of the broker into the store, and worked on there.
    - `create`: whether to create queues, topics and tables that are missing.
    - `grace`: how long a planned stop waits for running messages.
    - `prefetch`: how many messages a consumer reads ahead.
    - `max_body`, `max_depth`: the largest body and the deepest JSON that is accepted. `max_body=None`: no limit.
    - `code_version`: recorded in each dead letter. None: the version of the installed package that has the app's module.
    - `worker_memory`: limit for each worker process. None: no limit.
    - `recycle_messages`, `recycle_memory`: replace a worker after so many messages, or above so much memory. None: never.
    - `start_timeout`: how long importing the app, and on_worker_start, may take.
    - `accept`: findings of `unpoison doctor` to start with nevertheless, by name.
    - `metrics_port`, `metrics_host`: where consumers answer /metrics, /healthz and /readyz. None: nowhere; port 0: any free port.
    - `heartbeat_file`: a file whose time is renewed while all consumers turn. None: no file.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        store: str | None = None,
        collect: bool | None = DEFAULTS.collect,
        create: bool | None = DEFAULTS.create,
        grace: float | timedelta | None = DEFAULTS.grace,
        prefetch: int | None = DEFAULTS.prefetch,
        max_body: int | None = DEFAULTS.max_body,
        max_depth: int | None = DEFAULTS.max_depth,
        code_version: str | None = None,
        worker_memory: int | None = None,
        recycle_messages: int | None = None,
        recycle_memory: int | None = None,
        start_timeout: float | timedelta | None = DEFAULTS.start_timeout,
        accept: Sequence[str] | None = DEFAULTS.accept,
        metrics_port: int | None = DEFAULTS.metrics_port,
        metrics_host: str | None = DEFAULTS.metrics_host,
        heartbeat_file: str | None = DEFAULTS.heartbeat_file,
    ) -> None:
        given: dict[str, Any] = {**locals()}  # every argument, by the name of its setting
        del given["self"]
        if isinstance(accept, list | set | frozenset):
            given["accept"] = tuple(accept)
        settings = settings_from(given)
        url = resolved(settings.url)
        self.settings: Settings = replace(settings, url=url, store=store_url(url, settings.store))
        if settings.collect:
            check_collects(url, self.settings.store)
        check_accepted(settings.accept)
        self._consumers: dict[str, Registration] = {}
        self._on_start: list[Callable[[], Any]] = []
        self._on_stop: list[Callable[[], Any]] = []
        self._home = sys._getframe(1).f_globals  # noqa: SLF001 - workers import the app from the module that made it
        self._published: set[str] = set()
        self._publisher: tuple[int, Broker] | None = None
        self._dlqs: dict[str, tuple[int, DLQManager]] = {}
        self._lock = threading.Lock()

    def consumer(
        self,
        source: str,
        *,
        max_attempts: int | None = DEFAULTS.max_attempts,
        backoff: Backoff | None = DEFAULTS.backoff,
        timeout: float | timedelta | None = 300,
        schema: Any = None,
        classify: ErrorClassifier | None = None,
        policies: Mapping[type[BaseException], Policy] | None = None,
        key_from: str | None = None,
        tombstones: str = "handle",
        depends_on: str | None = None,
        breaker: Breaker | None = DEFAULT_CONTROL.breaker,
        budget: float | None = DEFAULT_CONTROL.budget,
        admission: Admission | None = DEFAULT_CONTROL.admission,
        concurrency: int | None = None,
        threads: int = 1,
        isolation: str | None = None,
        max_age: float | timedelta | None = DEFAULTS.max_age,
        on_dlq: OnDLQ | None = None,
        on_retry: OnRetry | None = None,
        handler: PoisonPillHandler | None = None,
    ) -> Callable[[Function], Function]:
        """Register the decorated function as the handler of `source`. The function itself stays as it is.

        - `max_attempts`: starts before a failing message becomes a dead letter. None: no limit.
        - `backoff`: the delays between attempts. Left out beside `handler=`: the handler's own.
        - `timeout`: how long the handler may run, in seconds or a timedelta. None: no limit.
        - `schema`: what a body must fit. None: the annotation of the handler's first parameter.
        - `classify`: called with the exception; returns an ErrorClassification, or None for the built-in rules.
        - `policies`: what is different for exception classes: {Timeout: Policy(max_attempts=10)}.
        - `key_from`: where the key of a message is: "body:customer.id" or "header:tenant".
        - `tombstones`: what to do with messages without a value: "handle" or "skip" them.
        - `depends_on`: the name of what every message needs. While that is down, the source is paused.
        - `breaker`: what counts as the outage of a dependency. None: failures on it are charged as ever.
        - `budget`: the share of the traffic that retries may have. None: no limit.
        - `admission`: how many dead letters are too many; above it the source is paused. None: no limit.
        - `concurrency`: messages handled at once. None: one for each CPU, at least 2; for async handlers 32.
        - `threads`: threads in each worker process; messages then share a process.
        - `isolation`: "process", "thread" or "inline". None: "process" on Linux, "thread" elsewhere and for memory://.
        - `max_age`: how long after its first failure a message is retried, in seconds or a timedelta. None: no limit.
        - `on_dlq`: called with message, metadata and exception after a dead letter was stored. May be async.
        - `on_retry`: called with message, metadata and the delay in seconds after a retry was stored. May be async.
        - `handler`: a PoisonPillHandler that decides max_attempts, max_age, classify, policies and the hooks itself.
        """
        options: dict[str, Any] = {**locals()}  # what `register` takes by name
        del options["self"], options["source"]
        check_has_source(source)

        def decorate(function: Function) -> Function:
            if source in self._consumers:
                raise ConfigError(
                    f"Source {source!r} has two consumers in this app. One message would go to either; keep one of them."
                )
            check_source(source)
            check_sources(self.settings.url, [*self._consumers, source])
            self._consumers[source] = register(self.settings, source, function, **options)
            return function

        return decorate

    def on_worker_start(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Call this in every worker before its first message: open pools here. Async functions run on the handlers' loop."""
        check_not_generator(function, "on_worker_start")
        self._on_start.append(function)
        return function

    def on_worker_stop(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Call this in every worker that stops normally. An async function is awaited."""
        check_not_generator(function, "on_worker_stop")
        self._on_stop.append(function)
        return function

    def publish(
        self,
        source: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta = 0,
        id: str | None = None,  # noqa: A002 - the word users write
    ) -> str:
        """Send one message and return its id. It is stored durably when this returns.

        Raises PayloadError if it can never be stored, and PublishFailed if the broker refused it (`refused`) or did not answer
        (`unknown`: it may be stored; to send it again, use the same id).

        `id` names the message; it never deduplicates. No consumer starts the message before `delay` is over.
        """
        self._check_target(source)
        check_text("id", id)
        wait = seconds(delay, "delay") if delay else 0.0
        ids, bodies = [new_id() if id is None else id], [encode(payload)]
        limit = self.settings.max_body
        self._send(outgoing(source, bodies, ids, key=key, headers=headers, delay=wait, max_body=limit))
        return ids[0]

    def publish_many(self, source: str, payloads: Iterable[Any], *, ids: Iterable[str] | None = None) -> list[str]:
        """Send all of these, in as few steps as the broker allows. Returns their ids.

        SQLite, PostgreSQL, Redis and memory store all of them or none. The others may store a part: then PublishFailed says for
        each message whether it is stored, refused or unknown. Pass `ids` to send messages again under the same ids.
        """
        self._check_target(source)
        check_several(source, payloads)
        bodies = [encode(payload) for payload in payloads]
        named = new_ids(len(bodies)) if ids is None else _checked_ids(ids, len(bodies))
        if bodies:
            self._send(outgoing(source, bodies, named, max_body=self.settings.max_body))
        return named

    def _send(self, messages: Sequence[Outgoing]) -> None:
        outcome = published(self._broker, messages)
        for source in outcome.created:
            if source not in self._consumers:
                warn_of_new_source(source, self.settings.url, list(self._consumers))
        check(messages, outcome)

    async def publish_async(
        self,
        source: str,
        payload: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float | timedelta = 0,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """`publish` for event loops: the loop is not blocked while the message is stored."""
        import asyncio  # noqa: PLC0415 - 60 ms that only event loops should pay for, and they have it already

        return await asyncio.to_thread(self.publish, source, payload, key=key, headers=headers, delay=delay, id=id)

    def dlq(self, source: str) -> DLQManager:
        """The dead letters of a source. All calls share one connection, until it or the app is closed."""
        with self._lock:
            pid, known = self._dlqs.get(source, (0, None))
            if known is None or known.is_closed or pid != os.getpid():
                known = DLQManager(self._letters(source), source)
                self._dlqs[source] = (os.getpid(), known)
            return known

    def _letters(self, source: str) -> DeadLetters:
        url, store, create = self.settings.url, self.settings.store, self.settings.create
        if not (self.settings.collect and store):
            return dead_letters_for(url, source, create=create)
        from unpoison.store.letters.choice import letters_of  # noqa: PLC0415 - only for letters that are collected

        return letters_of(url, store, source, create=create, may_create=create)

    def run(self, *, until_empty: bool = False) -> RunResult:
        """Consume until SIGTERM or SIGINT, or until the sources are empty. Returns how many messages ended how."""
        if _imports:
            raise ConfigError(
                "app.run() is called while worker processes import the app, so each of them would start it again. "
                "Put it under if __name__ == '__main__':"
            )
        try:
            run = Run([runnable(self)], make_metrics=make_metrics)
        except KeyboardInterrupt:  # a run that has begun catches Ctrl-C itself; before that nothing was started
            return RunResult({source: Tally() for source in self._consumers}, signal.SIGINT)
        run.serve(until_empty=until_empty)
        return run.result()

    @asynccontextmanager
    async def lifespan(self, asgi: Any = None) -> AsyncIterator[None]:
        """Run the consumers beside a web application: FastAPI(lifespan=app.lifespan).

        They run in a process of their own, drain when the application ends, and are restarted if they die.
        """
        import asyncio  # noqa: PLC0415 - as in publish_async

        isolated = [source for source, registration in self._consumers.items() if registration.options.isolation == "process"]
        if isolated:
            reference = reference_to(self, self._home, isolated[0])
            consumers: Companion | InProcessConsumer = await asyncio.to_thread(Companion, reference, self.settings)
        else:
            consumers = InProcessConsumer(Run([runnable(self)], make_metrics=make_metrics))
        try:
            yield
        finally:
            await asyncio.to_thread(consumers.stop)

    def close(self) -> None:
        """Close the connections that publishing and `dlq` opened. The app can be used again; it opens new ones."""
        with self._lock:
            opened: list[tuple[int, DLQManager | Broker]] = [*self._dlqs.values()]
            if self._publisher is not None:
                opened.append(self._publisher)
            self._dlqs.clear()
            self._publisher = None
        for pid, one in opened:
            if pid == os.getpid():  # a parent process closes what it opened
                one.close()

    def _check_target(self, source: str) -> None:
        """Check a source to publish to: no other source of this app may share its native names."""
        if source not in self._published:
            check_source(source)
            check_sources(self.settings.url, {*self._consumers, *self._published, source}, consumed=False)
            self._published.add(source)

    def _broker(self) -> Broker:
        """The connection for publishing, opened at first use; a forked child opens its own."""
        with self._lock:
            if self._publisher is None or self._publisher[0] != os.getpid():
                broker = broker_for(self.settings.url)
                broker.open([], create=self.settings.create)
                self._publisher = (os.getpid(), broker)
            return self._publisher[1]


def _checked_ids(ids: Iterable[str], count: int) -> list[str]:
    named = list(ids)
    for each in named:
        check_text("id", each)
    if len(named) != count:
        raise PayloadError(f"publish_many got {count:,} payloads and {len(named):,} ids. Give one id for each payload, or none.")
    return named


# What commands, tests and unpoison's own processes need of an app, and users do not.


_imports: list[None] = []
"""Not empty while one of unpoison's own processes imports the module that makes the app."""


@contextmanager
def importing() -> Iterator[None]:
    """While it lasts, app.run() refuses to start."""
    _imports.append(None)
    try:
        yield
    finally:
        _imports.pop()


def consumers_of(app: App) -> dict[str, Registration]:
    """By source."""
    return app._consumers  # noqa: SLF001 - private to users


def worker_hooks_of(app: App) -> WorkerHooks:
    return WorkerHooks(tuple(app._on_start), tuple(app._on_stop))  # noqa: SLF001 - private to users


def settings_of(app: App) -> Settings:
    """The settings with which it runs, the version of the user's code among them."""
    if app.settings.code_version is not None:
        return app.settings
    from unpoison.flow.code_version import installed_version  # noqa: PLC0415 - 20 ms that only consumers should pay for

    return replace(app.settings, code_version=installed_version(app._home.get("__file__")))  # noqa: SLF001 - private to users


def runnable(app: App) -> RunnableApp:
    """The app with everything that running it needs. Isolated workers import it again, by name."""
    options = [registration.options for registration in consumers_of(app).values()]
    isolated = [consumer.source for consumer in options if consumer.isolation == "process"]
    reference = reference_to(app, app._home, isolated[0]) if isolated else None  # noqa: SLF001 - private to users
    return RunnableApp(settings_of(app), options, lambda: consumers_of(app), reference, lambda: worker_hooks_of(app))


def make_metrics(code_version: str | None) -> "Metrics":
    """For a run that has a port. Raises MissingExtra without the extra `metrics`."""
    from importlib.metadata import version  # noqa: PLC0415 - both are for consumers with a port

    from unpoison.observing.metrics import Metrics  # noqa: PLC0415

    return Metrics(version("unpoison"), code_version)


def reference_to(app: App, home: Mapping[str, Any], source: str) -> str:
    """How worker processes find this app: "module:name", or the script's file and name."""
    name = next((name for name, value in home.items() if value is app), None)
    module = home.get("__name__", "")
    if module == "__main__":
        spec = home.get("__spec__")
        module = spec.name if spec is not None else home.get("__file__", "")
    if name is None or not module or (module.endswith(".py") and not os.path.isfile(module)):  # noqa: PTH113 - a plain question
        raise ConfigError(
            f"Consumer {source!r}: worker processes import the app by name, but this app is not a variable at the top of a "
            f"module or script. Put app = App(…) there, or use isolation='thread' (then a message that crashes takes this "
            f"process with it)."
        )
    return f"{module}:{name}"
