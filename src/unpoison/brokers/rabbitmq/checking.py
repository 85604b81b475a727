"""With create=False: check that everything exists that a source needs, and that this user may use it.

This is done at start-up, so that one error names everything that is missing. Nothing is created:

- a passive declaration tells whether a queue or an exchange exists;
- a consumer whose argument the server refuses tells of the right to read, since that is looked at first;
- a message with the name of another user, which the server refuses too, tells of the right to write;
- an empty message tells of bindings: it is returned if there is none. The one for delays ends in `<queue>.busy`, where consumers
  drop it. The one for dead letters expires in the DLQ at once, if nothing else is there: so a DLQ with letters, or with a
  consumer, is not asked. Letters arrived there, so it is bound.
"""

from collections.abc import Iterable

from unpoison.brokers.rabbitmq import properties
from unpoison.brokers.rabbitmq.connections import Connections
from unpoison.brokers.rabbitmq.delays import LEVELS, digit_header, exchange_of, rung, rungs
from unpoison.brokers.rabbitmq.errors import NOT_FOUND, Refused
from unpoison.brokers.rabbitmq.names import DLX, busy_of, dlq_of, letters_of, purposes, starts_of, suspects_of
from unpoison.brokers.rabbitmq.writing import Batch, Copy
from unpoison.errors import BrokerUnavailable, ConfigError

PROBE = properties.header(b"x-unpoison-probe", True)
NAMED = 3
"""How many of many things of one kind are named."""


def check_consumer(connections: Connections, source: str) -> None:
    """Raises ConfigError with everything that a consumer of this source lacks."""
    checking = _Checking(connections, source)
    checking.look_for("queue", purposes(checking.where, source), checking.missing)
    checking.look_for("exchange", [DLX], checking.missing)
    for level in range(LEVELS):
        checking.look_for("exchange", [exchange_of(level)], checking.missing_delays)
        checking.look_for("queue", [rung(level, digit) for digit in rungs(level)], checking.missing_delays)
    checking.try_reading(source, suspects_of(source), starts_of(source), busy_of(source))
    checking.try_writing("", DLX, *map(exchange_of, range(LEVELS)))
    checking.try_bindings()
    connections.writer().renew()  # a channel remembers for a while what it was permitted
    checking.tell(f"Source {source!r} cannot be consumed, and create=False forbids creating what is missing")


def check_operator(connections: Connections, source: str) -> None:
    """Raises ConfigError with everything that is lacking for a look at the dead letters of this source."""
    checking = _Checking(connections, source)
    needed = letters_of(checking.where, source)
    checking.look_for("queue", needed, checking.missing)
    checking.try_reading(*needed)
    checking.tell(f"The dead letters of {source!r} cannot be looked at, and a look makes nothing")


class _Checking:
    def __init__(self, connections: Connections, source: str) -> None:
        self._connections, self._topology, self._source = connections, connections.topology(), source
        self.where = self._topology.where
        self._there: set[str] = set()
        self.missing: list[str] = []
        self.missing_delays: list[str] = []
        self._lacking: dict[str, str] = {}

    def look_for(self, kind: str, names: Iterable[str], missing: list[str]) -> None:
        look = self._topology.is_there if kind == "queue" else self._topology.exists
        for name in names:
            try:
                if look(name):
                    self._there.add(name)
                else:
                    missing.append(f"{kind} {name!r}")
            except Refused as refused:
                if not refused.is_forbidden:
                    raise
                # RabbitMQ 4 tells nothing of a name on which the user has no right at all.
                self._lacking[name] = "any right"

    def try_reading(self, *queues: str) -> None:
        """Also those that are missing: the right is looked at before the queue."""
        for queue in queues:
            try:
                self._topology.check_read(queue)
            except Refused as refused:
                if refused.is_forbidden:
                    self._lacking[queue] = "read"
                elif refused.code != NOT_FOUND:
                    raise

    def try_writing(self, *exchanges: str) -> None:
        for exchange in exchanges:
            batch = self._stored([Copy(exchange, self._source, properties.of_another_user(), b"")], may_close=True)
            if batch.closed is not None and batch.closed.is_forbidden:
                self._there.discard(exchange)
                self._lacking[exchange or "amq.default"] = "write"

    def try_bindings(self) -> None:
        dlq = dlq_of(self.where, self._source)
        if {DLX, dlq} <= self._there and self._topology.count(dlq) == (0, 0):
            data = properties.expiring(0, [PROBE])
            if self._stored([Copy(DLX, self._source, data, b"")]).unroutable:
                self.missing.append(f"binding of {dlq!r} to exchange {DLX!r} with the key {self._source!r}")
        for level in range(LEVELS):
            # From the bottom up: a message that finds no way further down would wait there until there is one.
            if not self._is_level_bound(level):
                return

    def _is_level_bound(self, level: int) -> bool:
        queues = {digit: rung(level, digit) for digit in rungs(level)}
        if not {busy_of(self._source), exchange_of(level), *queues.values()} <= self._there:
            return False
        targets = queues | ({0: exchange_of(level - 1)} if level else {})
        probes = {digit: self._delayed(level, digit) for digit in targets}
        if not self._stored(list(probes.values())).unroutable:
            return True
        self.missing_delays += [
            f"binding of {targets[digit]!r} to exchange {exchange_of(level)!r} (unpoison-d{level}={digit})"
            for digit, probe in probes.items()
            if self._stored([probe]).unroutable
        ]
        return False

    def _delayed(self, level: int, digit: int) -> Copy:
        """A message for one queue of a level, that goes the shortest way home from there."""
        digits = {**dict.fromkeys(range(1, level), 0), 0: 1, level: digit}
        entries = [PROBE, *(digit_header(place, value) for place, value in digits.items())]
        return Copy(exchange_of(level), busy_of(self._source), properties.expiring(0, entries), b"")

    def _stored(self, copies: list[Copy], *, may_close: bool = False) -> Batch:
        batch, error = self._connections.try_to_store(copies)
        if batch.broken is not None and error is not None and not (may_close and batch.closed):
            raise BrokerUnavailable(str(error))
        return batch

    def tell(self, what: str) -> None:
        if not (self.missing or self.missing_delays or self._lacking):
            return
        missing = ", ".join([*self.missing, *_few(self.missing_delays)])
        told = [f"{what}."]
        if missing:
            told.append(f"Missing in {self._connections.shown}: {missing}.")
        if self._lacking:
            lacking = [f"{right} on {name!r}" for name, right in self._lacking.items()]
            told.append(f"User {self._connections.user!r} lacks: {', '.join(_few(lacking, 20))}.")
        told.append(
            "Have an administrator run the script that `unpoison plan-topology module:app` prints: it makes and grants all of it."
        )
        raise ConfigError(" ".join(told))


def _few(names: list[str], most: int = NAMED) -> list[str]:
    return names if len(names) <= most else [*names[:most], f"and {len(names) - most} more like these"]
