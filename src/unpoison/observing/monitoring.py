"""What does a run show of itself to the outside, and where: a port, a heartbeat file, systemd?

One `Monitoring` for all apps of a run. It looks at their consumers once a second in a thread of its own, and costs them nothing
but a note of the time in each turn.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from unpoison.decide.options import LOOPBACK, Settings
from unpoison.errors import ConfigError, MissingExtra
from unpoison.model.wording import in_words, one_line
from unpoison.observing.health import Condition, Health, SourceHealth
from unpoison.observing.heartbeat import HeartbeatFile, Systemd
from unpoison.observing.http import Answer, HttpServer
from unpoison.reporting.observer import Observer

if TYPE_CHECKING:
    from unpoison.observing.metrics import Metrics

log = logging.getLogger("unpoison")

Value = TypeVar("Value", int, str)

LOOK_EVERY = 1.0

STATUS_LIMIT = 200
"""Characters of the line that systemctl status shows."""


class Exposed(NamedTuple):
    """Where a run is seen from outside; None where it was not said."""

    port: int | None = None
    host: str | None = None
    heartbeat_file: str | None = None


def exposed_by(settings: Sequence[Settings], given: Exposed = Exposed()) -> Exposed:  # noqa: B008 - a value that never changes
    """What the apps of a run say together, or what was `given` beside them. The run has one port and one file."""
    host, port = given.host, given.port
    if port is None:
        port = _agreed("metrics_port", [each.metrics_port for each in settings])
    if host is None:
        hosts = [each.metrics_host for each in settings if each.metrics_port is not None]
        host = _agreed("metrics_host", hosts or [each.metrics_host for each in settings if each.metrics_host != LOOPBACK])
    elif port is None:
        raise ConfigError(f"metrics_host is {host!r}, but there is no port to serve anything at. Add one: --metrics-port 9464")
    file = given.heartbeat_file or _agreed("heartbeat_file", [each.heartbeat_file for each in settings])
    return Exposed(port, host or LOOPBACK, file)


def _agreed(name: str, values: Sequence[Value | None]) -> Value | None:
    different = list(dict.fromkeys(value for value in values if value is not None))
    if len(different) > 1:
        option = name.replace("_", "-")
        raise ConfigError(
            f"The apps of this run have different values for {name}: {', '.join(map(repr, different))}. They run in one process "
            f"and share it. Give them the same one, or say which with --{option}."
        )
    return different[0] if different else None


class Monitoring:
    """The outside view of a run, from its start to its end."""

    def __init__(
        self,
        exposed: Exposed,
        sources: Sequence[SourceHealth],
        is_draining: Callable[[], bool] = bool,
        make_metrics: "Callable[[], Metrics] | None" = None,
    ) -> None:
        """`make_metrics` is called if there is a port, and raises MissingExtra if it needs what is not installed."""
        self.health = Health(sources, is_draining)
        self._metrics: Metrics | None = None
        self._missing = "This run makes none."
        """Why there are no metrics."""
        self._file = None if exposed.heartbeat_file is None else HeartbeatFile(exposed.heartbeat_file)
        self._systemd: Systemd | None = None
        self._hung: set[str] = set()
        self._closed, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="unpoison-monitoring", daemon=True)
        self._server: HttpServer | None = None
        if exposed.port is not None:
            if make_metrics is not None:
                self._measure(make_metrics)
            routes = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._exposed}
            self._server = HttpServer(exposed.host or LOOPBACK, exposed.port, routes)

    @property
    def observers(self) -> Sequence[Observer]:
        """Those who have to hear what happens."""
        is_watched = self._server or self._file or "NOTIFY_SOCKET" in os.environ
        return [each for each in (self.health, self._metrics) if each is not None and is_watched]

    def _measure(self, make_metrics: "Callable[[], Metrics]") -> None:
        """Health is served without metrics too: the port then says what is missing."""
        try:
            self._metrics = make_metrics()
        except MissingExtra as missing:
            self._missing = str(missing)

    def start(self) -> None:
        """To be called by the thread that runs everything: systemd hears only of the main one, which is the service."""
        if threading.current_thread() is threading.main_thread():
            self._systemd = Systemd.of()
        if self._server is not None:
            self._server.start()
            metrics = f" and {self._server.url}/metrics." if self._metrics else f". There are no metrics: {self._missing}"
            extra = {"event": "listen", "host": self._server.host, "port": self._server.port}
            log.info("Look at %s/healthz, %s/readyz%s", self._server.url, self._server.url, metrics, extra=extra)
        if self._server or self._file or self._systemd:
            self._thread.start()

    def look_now(self) -> None:
        """Something has changed that others wait for."""
        self._wake.set()

    def close(self) -> None:
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * LOOK_EVERY)  # no longer: the file may be on a disk that hangs
        if self._systemd is not None:
            self._systemd.tell(STOPPING="1")
            self._systemd.close()
        if self._file is not None:
            self._file.remove()
        if self._server is not None:
            self._server.close()

    def _look_on(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            pause = LOOK_EVERY
            try:
                self._look()
                pause = min(LOOK_EVERY, *(each for each in self._dues() if each > 0))
            except Exception:  # else the supervisor would end a process that is well
                log.exception(
                    "A fault in unpoison's own monitoring; messages are not affected.", extra={"event": "monitoring-fault"}
                )
            self._wake.wait(pause)

    def _dues(self) -> list[float]:
        return [LOOK_EVERY, *(each.due_in() for each in (self._file, self._systemd) if each is not None)]

    def _look(self) -> None:
        conditions = self.health.conditions()
        self._tell_of_hung(conditions)
        for each in (self._file, self._systemd):
            if each is not None and not self._hung:
                each.turns()
        if self._systemd is not None:
            news = {"STATUS": _status(conditions)}
            if self.health.is_draining():
                news["STOPPING"] = "1"
            elif self.health.have_started():
                news["READY"] = "1"
            self._systemd.tell(**news)

    def _tell_of_hung(self, conditions: Sequence[Condition]) -> None:
        hung = {each.source for each in conditions if not each.is_turning}
        for source in hung - self._hung:
            known = self.health.of(source)
            log.error(
                "The consumer of %r hangs: its loop has not turned for %s. From now on /healthz answers 503 and no heartbeat is "
                "given, so that this process is restarted; no message is lost. It stands here:\n%s",
                source,
                in_words(known.hung_for()),
                known.stack().rstrip(),
                extra={"event": "hung", "source": source},
            )
        for source in self._hung - hung:
            log.warning("The consumer of %r turns again.", source, extra={"event": "turns-again", "source": source})
        self._hung = hung

    def _healthz(self, accept: str) -> Answer:
        return _answer(*self.health.healthz())

    def _readyz(self, accept: str) -> Answer:
        return _answer(*self.health.readyz())

    def _exposed(self, accept: str) -> Answer:
        if self._metrics is None:
            return Answer(HTTPStatus.NOT_IMPLEMENTED, f"{self._missing}\n".encode(), "text/plain; charset=utf-8")
        return Answer(HTTPStatus.OK, *self._metrics.expose(accept))


def _answer(is_fine: bool, body: bytes) -> Answer:
    return Answer(HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE, body)


def _status(conditions: Sequence[Condition]) -> str:
    """One line: what is not as it should be, or else what is consumed."""
    told = [f"{each.source}: {each.state}. {each.reason}" for each in conditions if each.reason]
    return one_line(" ".join(told) or f"Consuming {', '.join(each.source for each in conditions)}.", STATUS_LIMIT)
