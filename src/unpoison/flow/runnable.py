"""Starts the workers of a consumer: isolated worker processes, threads of this process, or the consumer's own thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from unpoison.decide.options import ConsumerOptions, Settings
from unpoison.errors import ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker import Broker
from unpoison.reporting.log_lines import LogStyle
from unpoison.reporting.numbers import SourceNumbers
from unpoison.worker import wire
from unpoison.worker.call import Registration, WorkerHooks
from unpoison.workers.deaths import Deaths
from unpoison.workers.hooks import HookCaller, Hooks, IsolatedHooks
from unpoison.workers.in_process import InlineWorkers, TaskWorkers, ThreadWorkers, WorkerHere
from unpoison.workers.interface import Bell, Workers
from unpoison.workers.pool import IsolatedWorkers
from unpoison.workers.template_client import Template

Registrations = Callable[[], Mapping[str, Registration]]
"""Gives the consumers with their user code. Called only where handlers run in this process."""


@dataclass(frozen=True, slots=True)
class StartedWorkers:
    """The workers and hooks of one consumer, and what the start line says about where its handlers run. `problem` says why they
    can start nothing, in any thread; it is empty if they can."""

    workers: Workers
    hooks: HookCaller
    where: str
    problem: Callable[[], str] = str


class RunnableApp:
    """An app made ready to run. Its template process, which imports the app, is started at once."""

    def __init__(
        self,
        settings: Settings,
        consumers: Sequence[ConsumerOptions],
        registrations: Registrations,
        reference: str | None,
        worker_hooks: Callable[[], WorkerHooks] = WorkerHooks,
    ) -> None:
        self.settings, self.reference = settings, reference or ""
        self._consumers, self._registrations = consumers, registrations
        self._here = WorkerHere(worker_hooks, settings.start_timeout)
        self._deaths = Deaths()
        self._template = Template(reference, settings.start_timeout, settings.url) if reference is not None else None

    @classmethod
    def from_reference(
        cls,
        reference: str,
        registrations: Registrations,
        start_timeout: float = 60.0,
        *,
        workers: int | None = None,
        worker_hooks: Callable[[], WorkerHooks] = WorkerHooks,
        style: LogStyle | None = None,
        url: str = "",
    ) -> "RunnableApp":
        """From "module:app", without importing it here: the template process describes the app.

        `workers` is how many processes serve each source, whatever its concurrency asks for. `style` is how they write log
        lines, unless the app configures logging itself. `url` is the URL of the app if it was made in this process before.
        """
        template = Template(reference, start_timeout, url, style)
        described = template.app
        options = [replace(consumer.options, workers=workers) for consumer in described.consumers]
        app = cls(described.settings, options, registrations, None, worker_hooks)
        app.reference, app._template = reference, template
        return app

    def consumers(self) -> Sequence[ConsumerOptions]:
        return self._consumers

    def start_workers(
        self, options: ConsumerOptions, broker: Broker, bell: Bell, numbers: SourceNumbers | None = None
    ) -> StartedWorkers:
        """Workers for one consumer."""
        numbers = numbers or SourceNumbers()
        if options.isolation == "process":
            return self._isolated(options, broker, bell, numbers)
        self._here.start()  # first: it alone makes sure that the user's module is loaded once
        call = self._registrations()[options.source].call
        hooks = Hooks(call.handler)
        if options.isolation == "inline":
            return StartedWorkers(
                InlineWorkers(call, self.settings.prefetch, bell, numbers.durations),
                hooks,
                _not_isolated("in the consumer's own thread", options),
            )
        if options.is_async:
            tasks = TaskWorkers(call, options.concurrency, bell, self._here.loop_thread().loop, numbers.durations)
            return StartedWorkers(tasks, hooks, _not_isolated("as tasks on one event loop", options))
        workers = ThreadWorkers(call, options.concurrency, self.settings.prefetch, bell, numbers.durations)
        return StartedWorkers(workers, hooks, _not_isolated(f"in {counted(options.concurrency, 'thread')}", options))

    def imported_at(self) -> float:
        """When the app was last imported by the process that starts its workers. From any thread."""
        return float("-inf") if self._template is None else self._template.imported_at

    def close(self) -> None:
        self._here.close()
        if self._template is not None:
            self._template.close()

    def _isolated(self, options: ConsumerOptions, broker: Broker, bell: Bell, numbers: SourceNumbers) -> StartedWorkers:
        if self._template is None:
            raise ConfigError(f"Consumer {options.source!r} asks for isolated workers, but its app cannot be imported by name.")
        consumer = next(one for one in self._template.app.consumers if one.options.source == options.source)
        consumer = wire.Consumer(options, consumer.needs_delivery, consumer.has_on_retry, consumer.has_on_dlq)
        template = self._template
        workers = IsolatedWorkers(consumer, self.settings, template, broker.inherited_fds, bell, self._deaths, numbers)
        return StartedWorkers(
            workers,
            IsolatedHooks(consumer, template),
            _isolated_words(options, template),
            lambda: template.problem() or workers.problem(),
        )


def _isolated_words(options: ConsumerOptions, template: Template) -> str:
    each = ""
    if options.lanes > 1:
        each = f", each running up to {counted(options.lanes, 'task' if options.is_async else 'thread')}"
    processes = counted(options.processes, "isolated worker process", "isolated worker processes")
    words = f"with {processes}{each}."
    if not template.forks:
        threads = ", ".join(sorted(set(template.app.threads))[:3])
        words += (
            f" Importing the app started threads ({threads}), so workers cannot be forked: "
            f"starting one takes as long as the import."
        )
    return words


def _not_isolated(where: str, options: ConsumerOptions) -> str:
    limit = "" if options.is_async or options.timeout is None else " The time limit cannot be enforced on code that is stuck."
    return f"{where} of this process, not isolated: a handler that crashes takes the process down.{limit}"
