"""What does `unpoison doctor` say where several brokers have the same trouble?

The name of a finding never changes: people accept one by it. `loses` is for what loses messages or makes them go round for ever.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from shlex import quote

from unpoison.ports import Finding

MANY_DEAD = 100
"""Dead letters of one source above which somebody should look."""

NAMES = (
    "tables-missing",
    "tables-older",
    "tables-newer",
    "source-missing",
    "vanished-consumer",
    "many-dead-letters",
)
"""What every broker with tables is looked at for. `cannot-look` is none of them: it says that one of the others was not asked."""


def of_version(found: int, newest: int, url: str) -> Iterator[Finding]:
    """About the version of the tables; 0 where there are none."""
    if found == 0:
        yield Finding(
            "tables-missing",
            f"{url} has no tables of unpoison. The first publish or run makes them; an app with create=False does not start.",
            f"To make them now:\nunpoison migrate {quote(url)}",
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
        )


def of_sources(wanted: Sequence[str], known: Collection[str], url: str) -> Iterator[Finding]:
    """About sources that nobody has used yet, which is how a mistyped name looks."""
    for source in wanted:
        if source not in known:
            there = ", ".join(map(repr, sorted(known))) or "none"
            yield Finding(
                "source-missing",
                f"Source {source!r} is not in {url}; there are: {there}. Nothing was ever published to it: if another program "
                f"writes to a name that differs, its messages wait there and nobody consumes them.",
                "Compare the name in @app.consumer with the one that is published to. The first publish or run makes the source.",
            )


def of_vanished(no: int | str, host: str, pid: int, held: int) -> Finding:
    """About a consumer that is gone, and nobody has come to take over what it held."""
    return Finding(
        "vanished-consumer",
        f"Consumer {no} (process {pid} on {host}) is gone and held {held:,} messages. They are not lost: the next consumer "
        f"takes them over and starts them again. Since none has, none seems to run.",
        "Start a consumer:\nunpoison run module:app",
    )


def of_dead_letters(counts: Mapping[str, int], url: str) -> Iterator[Finding]:
    """About dead letters that wait, by source."""
    for source, count in counts.items():
        if count > MANY_DEAD:
            where = f"--url {quote(url)} --source {quote(source)}"
            yield Finding(
                "many-dead-letters",
                f"{count:,} dead letters of {source!r} wait for a person. Their messages were given up and are not worked on.",
                f"Look why, mend it, send them again:\nunpoison dlq ls {where}\nunpoison dlq replay --all {where}",
            )


def cannot_look(what: str, why: str, fix: str) -> Finding:
    """About something that this user has no right to see: it may be in order or not."""
    return Finding("cannot-look", f"Not checked: {what}. {why}", fix)
