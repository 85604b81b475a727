"""The registry of brokers: the adapter of each URL scheme. Modules of adapters are imported only when used."""

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from unpoison.errors import CapabilityError, ConfigError, MissingExtra
from unpoison.port.broker import Broker, DeadLetters, Finding, Leftovers, Progress
from unpoison.port.broker_url import masked, scheme_of, with_dlq
from unpoison.port.provisioning import Needs


class Adapter(NamedTuple):
    """The modules and classes of an adapter, by name."""

    module: str
    broker: str
    dead_letters_module: str
    dead_letters: str
    schema: str | None = None
    """The module of its tables, if it has any."""
    doctor: str | None = None
    """The module of its doctor. `NAMES` are all findings it can report, `DEEP` those that it reports only with `deep`;
    `findings_for` calls `examine`, and `sources_for` calls `known_sources`."""
    file: str | None = None
    """The module that reads the path in the URL, if the broker is a file: its `resolved` makes the path absolute."""
    has_adopted: bool = False
    """Whether the doctor has `adopted`, with findings that `open` does not report: `losses_for` calls it."""
    names: str | None = None
    """The module of native names: `check_sources` calls its `native_names`."""
    provisioning: str | None = None
    """The module that knows what an administrator must create or grant: `needs_for` calls its `needs`."""
    leaving: str | None = None
    """The module that moves waiting messages back into their source, by `leftovers` and `move_back`."""
    listed_letters: str | None = None
    """The module of DLQs that another program keeps in a form of its own, without a source of ours: `opened` is one, or None."""
    foreign_dlq: str | None = None
    """The module that opens a DLQ by its own name, whoever made it: `opened`."""
    leaves_cycles: bool = True
    """Whether its client leaves objects, bodies among them, that only the garbage collector can free."""


def _ours(package: str, prefix: str, *modules: str, has_adopted: bool = False, leaves_cycles: bool = True) -> Adapter:
    """An adapter of this package. In each of them the modules have the same names: those of the fields above."""
    where = f"unpoison.brokers.{package}"
    named = {name: f"{where}.{name}" for name in modules}
    adapter = Adapter(f"{where}.broker", f"{prefix}Broker", f"{where}.deadletters", f"{prefix}DeadLetters")
    return adapter._replace(**named, has_adopted=has_adopted, leaves_cycles=leaves_cycles)


_SERVER = ("doctor", "names", "provisioning", "foreign_dlq")

_BY_SCHEMES = {
    ("sqlite",): _ours("sqlite", "SQLite", "schema", "doctor", "file", leaves_cycles=False),
    ("postgresql", "postgres"): _ours("postgresql", "PostgreSQL", "schema", "doctor", "provisioning", has_adopted=True),
    ("amqp", "amqps"): _ours("rabbitmq", "RabbitMQ", *_SERVER, has_adopted=True),
    ("redis", "rediss", "redis+sentinel", "rediss+sentinel"): _ours(
        "redis", "Redis", *_SERVER, "listed_letters", has_adopted=True
    ),
    ("nats", "tls"): _ours("nats", "NATS", *_SERVER),
    ("sqs",): _ours("sqs", "SQS", *_SERVER),
    ("kafka", "kafka+ssl"): _ours("kafka", "Kafka", *_SERVER, "leaving", has_adopted=True, leaves_cycles=False),
    ("memory",): Adapter("unpoison.brokers.memory", "MemoryBroker", "unpoison.brokers.memory", "MemoryDeadLetters"),
}
ADAPTERS = {scheme: adapter for schemes, adapter in _BY_SCHEMES.items() for scheme in schemes}


def broker_for(url: str) -> Broker:
    """A broker for this URL, not yet opened."""
    adapter = _adapter(url)
    made: Broker = getattr(_module(adapter, adapter.module), adapter.broker)(url)
    return made


def leaves_cycles(url: str) -> bool:
    return _adapter(url).leaves_cycles


def dead_letters_for(url: str, source: str, *, create: bool = True) -> DeadLetters:
    """The DLQ of a source, opened. Without `create` a source that does not exist is refused."""
    adapter = _adapter(url)
    if adapter.listed_letters is not None:
        listed: DeadLetters | None = _module(adapter, adapter.listed_letters).opened(broker_for(url), source)
        if listed is not None:
            return listed
    broker = broker_for(url)
    broker.open([source], create=create)
    made: DeadLetters = getattr(_module(adapter, adapter.dead_letters_module), adapter.dead_letters)(broker, source)
    return made


def foreign_dlq(url: str, dlq: str, accepted: Collection[str] = ()) -> DeadLetters:
    """A DLQ by its own name, whoever made it, opened. Makes nothing there. Each letter tells of which source it is.

    Refuses one where looking at letters could delete them, unless that danger is among the `accepted` ones.
    """
    adapter = _adapter(url)
    if adapter.foreign_dlq is None:
        raise ConfigError(
            f"There is no DLQ {dlq!r} at {masked(url)!r}: dead letters are rows beside the messages of their source there. Name "
            f"the source: --source NAME"
        )
    made: DeadLetters = _module(adapter, adapter.foreign_dlq).opened(url, dlq, accepted)
    return made


def statements_for(url: str) -> str:
    """The statements that create the tables of this broker, for people's own migrations."""
    adapter = _adapter(url)
    if adapter.schema is None:
        raise ConfigError(
            f"{masked(url)!r} has no tables, so there is nothing to migrate. It creates what it needs when it is opened."
        )
    made: str = _module(adapter, adapter.schema).statements()
    return made


def findings_for(url: str, sources: Sequence[str] = (), longest: float | None = None, *, deep: bool = False) -> Sequence[Finding]:
    """What is wrong with this broker, for these sources or for all it has. Changes nothing, and needs no right to write.

    `longest` is how long a handler may run, in seconds: infinity where one has no limit, None where that is not known. `deep`
    allows looks that take long. Raises BrokerUnavailable or ConfigError if there is nothing to look at.
    """
    found: Sequence[Finding] = _doctor(url).examine(url, sources, longest, deep=deep)
    return found


def needs_for(url: str, sources: Sequence[str], user: str | None = None) -> Needs:
    """What an administrator must create for these sources, and grant to the user (without one: that of the URL). Changes nothing.

    A server that cannot be reached, or does not let this user look, is no error: then nothing is known to exist.
    """
    adapter = _adapter(url)
    if adapter.provisioning is None:
        return Needs(
            masked(url), (), notes=("Nothing is to be created or granted: unpoison makes the file or memory that it uses.",)
        )
    check_sources(url, sources)
    found: Needs = _module(adapter, adapter.provisioning).needs(url, sources, user)
    return found


def sources_for(url: str) -> Sequence[str]:
    """The sources that this broker has been used for. Changes nothing, and needs no right to write."""
    found: Sequence[str] = _doctor(url).known_sources(url)
    return found


def losses_for(url: str, source: str) -> Sequence[Finding]:
    """What about the queues, topics or tables of this source loses its messages. Asked before it is consumed, so it is quick.

    What `open` already tells is not among it. Raises BrokerUnavailable or ConfigError if it cannot be seen.
    """
    adapter = _adapter(url)
    if not adapter.has_adopted:
        return ()
    found: Sequence[Finding] = _doctor(url).adopted(url, source)
    return [each for each in found if each.loses]


def leftovers_for(url: str, sources: Sequence[str] = ()) -> Sequence[Leftovers]:
    """What to know before you stop using unpoison: for these sources, or for all that it was used for. Changes nothing."""
    found: Sequence[Leftovers] = _leaving(url).leftovers(url, sources)
    return found


def move_back(url: str, left: Leftovers, within: float, progress: Progress | None = None) -> int:
    """Put what waits back into its source; returns how many messages. Waits so many seconds for consumers to end."""
    count: int = _leaving(url).move_back(url, left, within, progress)
    return count


def _leaving(url: str) -> ModuleType:
    adapter = _adapter(url)
    if adapter.leaving is None:
        page = f"https://unpoison.readthedocs.io/en/latest/{adapter.module.split('.')[2]}/"
        raise CapabilityError(
            f"unpoison leave is for Kafka, where messages wait in topics that no other program reads. At {masked(url)!r} nothing "
            f"has to be moved. Let the consumers drain it (unpoison run module:app --until-empty), then remove the objects "
            f"listed under 'How to leave again' at {page}"
        )
    return _module(adapter, adapter.leaving)


def checks_for(url: str, *, deep: bool = False) -> Sequence[str]:
    """The names of what `findings_for` looks for at this broker."""
    doctor = _doctor(url)
    return [name for name in doctor.NAMES if deep or name not in doctor.DEEP]


def _doctor(url: str) -> ModuleType:
    adapter = _adapter(url)
    if adapter.doctor is None:
        known = ", ".join(f"{name}://" for name, each in ADAPTERS.items() if each.doctor)
        raise CapabilityError(
            f"{masked(url)!r} cannot be looked at from outside. unpoison doctor knows what to look for in {known}"
        )
    return _module(adapter, adapter.doctor)


def resolved(url: str) -> str:
    """The URL so that it means the same wherever this process goes. Refuses one that no broker understands; opens nothing."""
    broker_for(url)
    adapter = _adapter(url)
    if adapter.file is None:
        return url
    whole: str = _module(adapter, adapter.file).resolved(url)
    return whole


def url_with_dlq(url: str, source: str, dlq: str) -> str:
    """The URL that says of one source how its DLQ is called. Refuses names that this broker cannot have."""
    if not isinstance(dlq, str) or not dlq or not dlq.isprintable():
        raise ConfigError(f"The DLQ of source {source!r} must have a name, such as 'orders.DLT', got {dlq!r}.")
    if _adapter(url).names is None:
        raise ConfigError(
            f"The DLQ of source {source!r} cannot be called {dlq!r}: at {masked(url)!r} dead letters are rows beside the "
            f"messages of their source, and have no name of their own. Leave dlq out."
        )
    named = with_dlq(url, source, dlq)
    check_sources(named, [source], consumed=False)
    return named


def check_sources(url: str, sources: Collection[str], *, consumed: bool = True) -> None:
    """Refuse sources that would share a queue, topic or stream of this broker: each would get, or delete, what is the other's.

    Also refuses a URL with which nothing can be consumed, unless they are only published to.
    """
    taken: dict[str, tuple[str, str]] = {}
    for source in sources:
        for name, purpose in native_names_for(url, source, consumed=consumed).items():
            other, its_purpose = taken.setdefault(name, (source, purpose))
            if other != source:
                raise ConfigError(
                    f"Sources {other!r} and {source!r} would share {name!r} at this broker: for {other!r} it holds "
                    f"{its_purpose}, for {source!r} {purpose}. Each would take or delete what is the other's. Rename one of them."
                )


def native_names_for(url: str, source: str, *, consumed: bool = True) -> Mapping[str, str]:
    """The queues, topics or streams of a source at this broker, and what each is for. Nothing is asked of the broker."""
    adapter = _adapter(url)
    if adapter.names is None:
        return {}
    found: Mapping[str, str] = _module(adapter, adapter.names).native_names(url, source, consumed=consumed)
    return found


def is_url(text: str) -> bool:
    """Whether this is to be a broker's URL, rather than module:app."""
    return "://" in text or scheme_of(text) in ADAPTERS


def _module(adapter: Adapter, name: str) -> ModuleType:
    """A module of an adapter. The extra that brings its client is called as its package is: rabbitmq, postgresql."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "unpoison" or not name.startswith("unpoison.brokers."):
            raise
        raise MissingExtra(adapter.broker, missing, name.split(".")[2]) from error


def _adapter(url: str) -> Adapter:
    scheme = scheme_of(url)
    if scheme not in ADAPTERS:
        known = ", ".join(f"{name}://" for name in ADAPTERS)
        raise ConfigError(
            f"{masked(url)!r} names no broker that unpoison knows. It knows {known}; for a file here use sqlite:///shop.db"
        )
    return ADAPTERS[scheme]
