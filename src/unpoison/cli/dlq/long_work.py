"""How far is work on a whole DLQ, and how far was it when somebody pressed Ctrl-C?"""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from unpoison.cli.screen import progress
from unpoison.model.wording import counted
from unpoison.port.broker import Progress

_BAR = {"replayed": "Replaying", "purged": "Purging"}


@contextmanager
def long_work(verb: str, source: str) -> Iterator[Progress]:
    """A bar on a terminal. Ctrl-C says what was done until then; the rest is as it was."""
    reached = [0, 0]
    try:
        with progress(_BAR[verb]) as advance:

            def tell(done: int, total: int) -> None:
                reached[:] = [done, total]
                if advance:
                    advance(done, total)

            yield tell
    except KeyboardInterrupt:
        done, total = reached
        far = (
            f"{done:,} of {counted(total, 'dead letter')} of {source!r} {'was' if done == 1 else 'were'} {verb}"
            if total
            else f"None of {source!r} was {verb}"
        )
        click.echo(
            f"Stopped: {far}. Those in progress are either {verb} or still there; the rest is untouched. To go on, run it again.",
            err=True,
        )
        raise
