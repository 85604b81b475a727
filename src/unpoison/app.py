"""What does a user write? An `App` with its consumers, and `publish`."""

import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from unpoison.body.payload import check_several, check_text, encode, new_id, new_ids
from unpoison.body.signature import check_not_generator
from unpoison.brokers import broker_for, check_sources, dead_letters_for, resolved
from unpoison.deadletters.manager import DLQManager
from unpoison.decide.options import UNSET, Settings, settings_from
from unpoison.decide.policy import ErrorClassifier, PoisonPillHandler, Policy
from unpoison.errors import ConfigError, PayloadError, seconds
from unpoison.flow.companion import Companion
from unpoison.flow.registration import check_has_source, check_source, register
from unpoison.flow.run import InProcessConsumer, Run
from unpoison.flow.runnable import RunnableApp
from unpoison.flow.sending import check, outgoing, published, warn_of_new_source
from unpoison.model.backoff import Backoff
from unpoison.model.message import Outgoing
from unpoison.port.broker import Broker
from unpoison.port.findings import check_accepted
from unpoison.worker.call import Registration
from unpoison.worker.hooks import WorkerHooks

Function = TypeVar("Function", bound=Callable[..., Any])


class App:
    """One broker and any number of sources. Safe to use from several threads, and after a fork.

    Nothing is opened until something is published, consumed or looked at.
    """

    being_imported: ClassVar[bool] = False
    """Set while unpoison's own processes import the module that makes the app."""

    def __init__(
        self,
        url: str | None = None,
        *,
        create: bool | None = None,
        grace: float | timedelta | None = None,
        prefetch: int | None = None,
        max_body: int | None = UNSET,
        max_depth: int | None = None,
        code_version: str | None = None,
        worker_memory: int | None = None,
        recycle_messages: int | None = None,
        recycle_memory: int | None = None,
        start_timeout: float | timedelta | None = None,
        accept: Sequence[str] | None = None,
    ) -> None:
        given: dict[str, Any] = {
            "url": url,
            "create": create,
            "prefetch": prefetch,
            "max_depth": max_depth,
            "code_version": code_version,
        }
        given |= {"worker_memory": worker_memory, "recycle_messages": recycle_messages, "recycle_memory": recycle_memory}
        given["start_timeout"] = None if start_timeout is None else seconds(start_timeout, "start_timeout")
        given["accept"] = tuple(accept) if isinstance(accept, list | set | frozenset) else accept
        given["grace"] = None if grace is None else seconds(grace, "grace")
        settings = settings_from(given, max_body)
        self.settings: Settings = replace(settings, url=resolved(settings.url))
        check_accepted(settings.accept)
        self.consumers: dict[str, Registration] = {}
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
        max_attempts: int | None = UNSET,
        backoff: Backoff | None = None,
        timeout: float | timedelta | None = 300,
        schema: Any = None,
        classify: ErrorClassifier | None = None,
        policies: Mapping[type[BaseException], Policy] | None = None,
        key_from: str | None = None,
        tombstones: str = "handle",
        concurrency: int | None = None,
        threads: int = 1,
        isolation: str | None = None,
        max_age: float | timedelta | None = UNSET,
        handler: PoisonPillHandler | None = None,
    ) -> Callable[[Function], Function]:
        """Register the decorated function as the handler of a source. The function itself stays as it is."""
        check_has_source(source)

        def decorate(function: Function) -> Function:
            if source in self.consumers:
                raise ConfigError(
                    f"Source {source!r} has two consumers in this app. One message would go to either; keep one of them."
                )
            check_source(source)
            check_sources(self.settings.url, [*self.consumers, source])
            self.consumers[source] = register(
                self.settings,
                source,
                function,
                max_attempts=max_attempts,
                backoff=backoff,
                timeout=timeout,
                schema=schema,
                classify=classify,
                policies=policies,
                key_from=key_from,
                tombstones=tombstones,
                concurrency=concurrency,
                threads=threads,
                isolation=isolation,
                max_age=max_age,
                handler=handler,
            )
            return function

        return decorate

    def on_worker_start(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Have this run, or be awaited on the handlers' loop, in every worker before its first message: open pools here."""
        check_not_generator(function, "on_worker_start")
        self._on_start.append(function)
        return function

    def on_worker_stop(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Have this run in every worker that ends in good order. An async function is awaited."""
        check_not_generator(function, "on_worker_stop")
        self._on_stop.append(function)
        return function

    def worker_hooks(self) -> WorkerHooks:
        return WorkerHooks(tuple(self._on_start), tuple(self._on_stop))

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
        (`unknown`: it may be stored, and whoever sends it again uses the same id).

        `id` names the message; it never deduplicates. `delay` is how long nobody may start it.
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

        SQLite, PostgreSQL, Redis and memory store all of them or none. The others may store a part: then PublishFailed says of
        each message whether it is stored, refused or unknown. `ids` are for sending those again under the same ids.
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
            if source not in self.consumers:
                warn_of_new_source(source, self.settings.url, list(self.consumers))
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
        """`publish` for event loops: the loop goes on while the message is stored."""
        import asyncio  # noqa: PLC0415 - 60 ms that only event loops should pay for, and they have it already

        return await asyncio.to_thread(self.publish, source, payload, key=key, headers=headers, delay=delay, id=id)

    def dlq(self, source: str) -> DLQManager:
        """The dead letters of a source. One connection serves all calls, until it or the app is closed."""
        with self._lock:
            pid, known = self._dlqs.get(source, (0, None))
            if known is None or known.is_closed or pid != os.getpid():
                known = DLQManager(dead_letters_for(self.settings.url, source, create=self.settings.create), source)
                self._dlqs[source] = (os.getpid(), known)
            return known

    def run(self, *, until_empty: bool = False) -> Run:
        """Consume until SIGTERM or SIGINT, or until the sources are empty. Returns what was done."""
        if App.being_imported:
            raise ConfigError(
                "app.run() is called while the app is being imported by its own processes, which would start it again and again. "
                "Put it under if __name__ == '__main__':"
            )
        run = Run([self.runnable()])
        run.serve(until_empty=until_empty)
        return run

    @asynccontextmanager
    async def lifespan(self, asgi: Any = None) -> AsyncIterator[None]:
        """Bring the consumers along with a web application: FastAPI(lifespan=app.lifespan).

        They run in a process of their own beside it, drain when the application ends, and are started again if they die.
        """
        import asyncio  # noqa: PLC0415 - as in publish_async

        isolated = [source for source, registration in self.consumers.items() if registration.options.isolation == "process"]
        if isolated:
            reference = reference_to(self, self._home, isolated[0])
            consumers: Companion | InProcessConsumer = await asyncio.to_thread(Companion, reference, self.settings)
        else:
            consumers = InProcessConsumer(self.runnable())
        try:
            yield
        finally:
            await asyncio.to_thread(consumers.stop)

    def runnable(self) -> RunnableApp:
        """This app with everything that is needed to run it; isolated workers import it anew, by name."""
        options = [registration.options for registration in self.consumers.values()]
        isolated = [consumer.source for consumer in options if consumer.isolation == "process"]
        reference = reference_to(self, self._home, isolated[0]) if isolated else None
        return RunnableApp(self.settings, options, lambda: self.consumers, reference, self.worker_hooks)

    def close(self) -> None:
        """Close the connections that publishing and `dlq` opened. The app can be used again; it opens new ones."""
        with self._lock:
            opened: list[tuple[int, DLQManager | Broker]] = [*self._dlqs.values()]
            if self._publisher is not None:
                opened.append(self._publisher)
            self._dlqs.clear()
            self._publisher = None
        for pid, one in opened:
            if pid == os.getpid():  # what a parent process opened is its own to close
                one.close()

    def _check_target(self, source: str) -> None:
        """A source to publish to, whose messages no other source of this app would take for its own."""
        if source not in self._published:
            check_source(source)
            check_sources(self.settings.url, {*self.consumers, *self._published, source}, consumed=False)
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


def reference_to(app: App, home: Mapping[str, Any], source: str) -> str:
    """How worker processes find this app: "module:name", or the script's file and name."""
    name = next((name for name, value in home.items() if value is app), None)
    module = home.get("__name__", "")
    if module == "__main__":
        spec = home.get("__spec__")
        module = spec.name if spec is not None else home.get("__file__", "")
    if name is None or not module or (module.endswith(".py") and not os.path.isfile(module)):  # noqa: PTH113 - a plain question
        raise ConfigError(
            f"Consumer {source!r}: worker processes import the app by name, and this one is not a variable at the top of a "
            f"module or script. Put app = App(…) there, or use isolation='thread' (then a message that crashes takes this "
            f"process with it)."
        )
    return f"{module}:{name}"
