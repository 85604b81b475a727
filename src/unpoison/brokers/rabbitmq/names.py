"""Name the queues and exchanges of a source.

orders               the source: a quorum queue unless it was there before
orders.dlq           its dead letters, bound to the exchange `dlx`, unless another name is given for it
orders.dlq.history   letters that were replayed or discarded, the latest 10,000
orders.suspects      messages that must run alone, one at a time
orders.starts        who started one of those, for the letter of one that never ends
orders.busy          always empty: its consumers are those that hold messages of the source
orders.delayed       notes until when messages of the source are delayed
orders.dlq.lock      always empty: its only consumer is the operator who works on the dead letters
orders.made          an exchange to which nothing is bound: unpoison created the queue `orders`
"""

from unpoison.brokers.rabbitmq.url import Address, address
from unpoison.errors import ConfigError

DLX = "dlx"
LONGEST_NAME = 255 - len(".dlq.history")

suspects_of = "{}.suspects".format
starts_of = "{}.starts".format
busy_of = "{}.busy".format
delayed_of = "{}.delayed".format
made_of = "{}.made".format


def dlq_of(where: Address, source: str) -> str:
    return where.dlqs.get(source, f"{source}.dlq")


def history_of(where: Address, source: str) -> str:
    return f"{dlq_of(where, source)}.history"


def lock_of(where: Address, source: str) -> str:
    return f"{dlq_of(where, source)}.lock"


def letters_of(where: Address, source: str) -> tuple[str, str, str]:
    """The queues for dead letters: the DLQ and those beside it."""
    return dlq_of(where, source), history_of(where, source), lock_of(where, source)


def check_name(where: Address, source: str) -> None:
    _check(source, f"Source {source[:80]!r}")
    if source in where.dlqs:
        _check(where.dlqs[source], f"The DLQ {where.dlqs[source][:80]!r} of source {source!r}")
        if where.dlqs[source] in purposes(where._replace(dlqs={}), source).keys() - {f"{source}.dlq"}:
            raise ConfigError(
                f"The DLQ of source {source!r} cannot be {where.dlqs[source]!r}: that queue is something else of this source. "
                f"Choose another name."
            )


def _check(name: str, what: str) -> None:
    if not name or name.startswith("amq.") or len(name.encode()) > LONGEST_NAME:
        raise ConfigError(f"{what} cannot be a RabbitMQ queue: a name has 1 to {LONGEST_NAME} bytes and does not begin with amq.")


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - every broker is asked the same
    """The queues of a source, and what each is for."""
    where = address(url)
    if source in where.dlqs:
        check_name(where, source)
    return purposes(where, source)


def purposes(where: Address, source: str) -> dict[str, str]:
    return {
        source: "its messages",
        dlq_of(where, source): "its dead letters",
        history_of(where, source): "what became of dead letters",
        suspects_of(source): "messages that run alone",
        starts_of(source): "who started those",
        busy_of(source): "who holds messages",
        delayed_of(source): "until when messages are delayed",
        lock_of(where, source): "who works on its dead letters",
    }


def helpers(source: str) -> set[str]:
    """Queues beside a source by their usual names: what comes from one of them came from the source."""
    letters = f"{source}.dlq"
    return {
        letters,
        f"{letters}.history",
        f"{letters}.lock",
        suspects_of(source),
        starts_of(source),
        busy_of(source),
        delayed_of(source),
    }
