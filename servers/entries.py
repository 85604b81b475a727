"""Which servers are there? The next one is a file with an Entry, and a line here."""

from servers.elasticmq import ELASTICMQ
from servers.errors import ServerFailed
from servers.kafka import KAFKA
from servers.moto import MOTO
from servers.nats import NATS_2_9, NATS_CURRENT
from servers.pgbouncer import PGBOUNCER
from servers.postgresql import POSTGRESQL
from servers.prometheus import PROMETHEUS
from servers.rabbitmq import RABBITMQ, RABBITMQ_4
from servers.redis import REDIS, REDIS_8
from servers.server import Entry

ENTRIES = {
    each.name: each
    for each in (
        *(POSTGRESQL, PGBOUNCER, RABBITMQ, RABBITMQ_4, REDIS, REDIS_8, NATS_CURRENT, NATS_2_9, KAFKA, ELASTICMQ, MOTO),
        PROMETHEUS,
    )
}


def entry(name: str) -> Entry:
    try:
        return ENTRIES[name]
    except KeyError:
        raise ServerFailed(f"no server is called {name!r}. There are: {', '.join(ENTRIES)}") from None
