"""Name the queues and exchanges of a source.

orders               the source: a quorum queue unless it was there before
orders.dlq           its dead letters, bound to the exchange `dlx`
orders.dlq.history   letters that were replayed or discarded, the latest 10,000
orders.suspects      messages that must run alone, one at a time
orders.starts        who started one of those, for the letter of one that never ends
orders.busy          always empty: its consumers are those that hold messages of the source
orders.delayed       notes until when messages of the source are delayed
orders.dlq.lock      always empty: its only consumer is the operator who works on the dead letters
orders.made          an exchange to which nothing is bound: unpoison created the queue `orders`
"""

from unpoison.errors import ConfigError

DLX = "dlx"
LONGEST_NAME = 255 - len(".dlq.history")

dlq_of = "{}.dlq".format
history_of = "{}.dlq.history".format
lock_of = "{}.dlq.lock".format
suspects_of = "{}.suspects".format
starts_of = "{}.starts".format
busy_of = "{}.busy".format
delayed_of = "{}.delayed".format
made_of = "{}.made".format


def check_name(source: str) -> None:
    if not source or source.startswith("amq.") or len(source.encode()) > LONGEST_NAME:
        raise ConfigError(
            f"Source {source[:80]!r} cannot be a RabbitMQ queue: a name has 1 to {LONGEST_NAME} bytes "
            f"and does not begin with amq."
        )


def native_names(url: str, source: str, *, consumed: bool) -> dict[str, str]:  # noqa: ARG001 - every broker is asked the same
    """The queues of a source, and what each is for."""
    return {
        source: "its messages",
        dlq_of(source): "its dead letters",
        history_of(source): "what became of dead letters",
        suspects_of(source): "messages that run alone",
        starts_of(source): "who started those",
        busy_of(source): "who holds messages",
        delayed_of(source): "until when messages are delayed",
        lock_of(source): "who works on its dead letters",
    }
