"""What does `unpoison doctor` say where several brokers have the same trouble?

The name of a finding never changes: people accept one by it. `loses` is for what loses messages or makes them go round for ever.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from shlex import quote
from typing import Any, NamedTuple

from unpoison.errors import ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker import Finding

MANY_DEAD = 100
"""Dead letters of one source above which the doctor reports them."""

_RABBITMQ = (
    *("queue-not-durable", "queue-auto-delete", "queue-exclusive", "queue-expires", "stream-queue", "messages-expire"),
    *("length-limit-drops", "source-limit-deletes", "source-limit-low", "dead-letters-loop", "dead-letters-unrouted"),
    *("dlq-limit", "dlq-sends-back", "dlq-expires", "suspects-not-quorum", "suspects-limit"),
)
_KAFKA = ("source-compacted", "retries-expire", "states-expire", "unclean-election", "fewer-copies", "fewer-in-sync")
_NATS = ("stream-in-memory", "stream-without-acks", "delivery-limit")  # and retries-expire
_SQS = ("redrive-too-low", "short-retention", "letters-expire-early", "letters-redriven")

ADOPTED = (*_RABBITMQ, *_KAFKA, *_NATS, *_SQS, "key-expires", "unlogged-tables")
"""What about a queue, topic, stream or table that was there before loses messages. A consumer of it starts only if its app
accepts the finding by name. What is wrong with a whole server is not among them: no app can choose that."""

NAMES = ("tables-missing", "tables-older", "tables-newer", "source-missing", "vanished-consumer", "many-dead-letters")
"""What every broker with tables is looked at for. `cannot-look` is none of them: it says that one of the others was not asked."""


class Check(NamedTuple):
    """Something that can be wrong with a queue, stream, topic or table: when it is, what that means, and what to do.

    `problem` and `fix` are templates of `str.format`, filled with the facts that `is_wrong` is asked about.
    """

    name: str
    is_wrong: Callable[[Any], bool]
    problem: str
    fix: str
    loses: bool = False
    stops: bool = False


loss = partial(Check, loses=True)
"""A check for what loses messages, or makes them go round for ever."""

stop = partial(Check, stops=True)
"""A check for what keeps messages from being published or consumed until it is fixed."""


def examine(checks: Iterable[Check], facts: Any) -> list[Finding]:
    """What is wrong, by a table of checks. Templates name the facts as `{of.field}`, or `{of[field]}` of a mapping."""
    return [
        Finding(check.name, check.problem.format(of=facts), check.fix.format(of=facts), check.loses, check.stops)
        for check in checks
        if check.is_wrong(facts)
    ]


def names_of(*tables: Iterable[Check]) -> tuple[str, ...]:
    """The names of all findings in these tables, each once."""
    return tuple(dict.fromkeys(check.name for table in tables for check in table))


def check_accepted(names: Sequence[str]) -> None:
    """Refuse unknown names: a mistyped one would be noticed only when it is needed."""
    for name in names:
        if name not in ADOPTED:
            raise ConfigError(
                f"accept names {name!r}, but no finding that keeps a consumer from starting has this name. The names are: "
                f"{', '.join(ADOPTED)}."
            )


def refuse_losses(source: str, found: Sequence[Finding], accepted: Sequence[str]) -> None:
    """Raise ConfigError if one of these loses messages of the source and was not accepted."""
    losses = [each for each in found if each.loses and each.name in ADOPTED and each.name not in accepted]
    if not losses:
        return
    names = sorted({*accepted, *(each.name for each in losses)})
    told = "".join(f"\n  {each.name}: {each.problem}\n    {each.fix.replace(chr(10), chr(10) + '    ')}" for each in losses)
    raise ConfigError(
        f"Consumer {source!r} does not start: existing settings would lose its messages. Fix them, or accept them by name:"
        f"{told}\nTo start nevertheless: App(…, accept={names!r}), or UNPOISON_ACCEPT={','.join(names)}"
    )


def of_version(found: int, newest: int, url: str) -> Iterator[Finding]:
    """About the version of the tables; 0 where there are none."""
    if found == 0:
        yield Finding(
            "tables-missing",
            f"{url} has no tables of unpoison. The first publish or run creates them; an app with create=False does not start.",
            f"To create them now:\nunpoison migrate {quote(url)}",
        )
    elif found < newest:
        yield Finding(
            "tables-older",
            f"{url} has tables of version {found}, this unpoison needs {newest}. The next publish or run brings them there; "
            f"an app with create=False does not start.",
            f"To do it now:\nunpoison migrate {quote(url)}",
        )
    elif found > newest:
        yield Finding(
            "tables-newer",
            f"{url} was written by a newer unpoison (tables of version {found}, this one knows {newest}). "
            f"Consumers and publishers of this version refuse to start; the messages stay where they are.",
            "Upgrade unpoison here:\npip install --upgrade unpoison",
            stops=True,
        )


def of_sources(wanted: Sequence[str], known: Collection[str], url: str) -> Iterator[Finding]:
    """About sources that nobody has used yet, which is how a mistyped name looks."""
    for source in wanted:
        if source not in known:
            there = ", ".join(map(repr, sorted(known))) or "none"
            yield Finding(
                "source-missing",
                f"Source {source!r} is not in {url}; there are: {there}. Nothing was ever published to it: if another program "
                f"uses a different name, its messages wait there and no consumer takes them.",
                "Compare the name in @app.consumer with the published one. The first publish or run creates the source.",
            )


def of_vanished(no: int | str, host: str, pid: int, held: int) -> Finding:
    """About a consumer that is gone, and nobody has come to take over what it held."""
    return Finding(
        "vanished-consumer",
        f"Consumer {no} (process {pid} on {host}) is gone and held {counted(held, 'message')}. Nothing is lost: the next "
        f"consumer takes that over and starts it again. Since none has, none seems to run.",
        "Start a consumer:\nunpoison run module:app",
    )


def of_dead_letters(counts: Mapping[str, int], url: str) -> Iterator[Finding]:
    """About dead letters that wait, by source."""
    for source, count in counts.items():
        if count > MANY_DEAD:
            where = f"--url {quote(url)} --source {quote(source)}"
            yield Finding(
                "many-dead-letters",
                f"{count:,} dead letters of {source!r} wait for a person. Their messages were given up and are not retried.",
                f"Find the cause, fix it, send them again:\nunpoison dlq ls {where}\nunpoison dlq replay --all {where}",
            )


def cannot_look(what: str, why: str, fix: str) -> Finding:
    """About something that this user has no right to see: it may be in order or not."""
    return Finding("cannot-look", f"Not checked: {what}. {why}", fix)
