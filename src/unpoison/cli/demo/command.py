"""`unpoison demo`: consumes orders with poison among them, beside a plain loop, and accounts for each order."""

import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from unpoison.cli.demo.account import Account, account
from unpoison.cli.demo.screen import showing, tell
from unpoison.cli.demo.shop import FEWEST, MOST, traffic
from unpoison.cli.demo.stage import PREFIX, Observer, Snapshot, Stage, Supervised, set_up, wait
from unpoison.cli.input_output import print_json
from unpoison.model.wording import counted

LOOK_EVERY = 0.1
PATIENCE, PATIENCE_EACH = 120.0, 0.05
"""Seconds after which the demo gives up, and how many more for each message."""

FINISHED = "finished"
LAST_LINES = 5


@click.command(
    "demo",
    epilog="\b\nExamples:\n  unpoison demo\n  unpoison demo --messages 200 --seed 7 --keep\n  unpoison demo --json",
)
@click.option(
    "--messages",
    type=click.IntRange(FEWEST, MOST),
    default=1000,
    show_default=True,
    metavar="N",
    help="How many orders to publish.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Repeat a demo: the same seed publishes the same bytes.")
@click.option("--keep", is_flag=True, help="Keep the SQLite file, in the current folder. Without it the next demo removes it.")
@click.option("--json", "as_json", is_flag=True, help="Print the account as one JSON document; progress goes to standard error.")
def command(messages: int, seed: int | None, keep: bool, as_json: bool) -> None:
    """Watch poison messages being isolated.

    Publishes orders to a temporary SQLite file, one of each kind of poison among them: broken JSON, a wrong schema, a bug in the
    handler, a crash, a hang, a message that kills the whole consumer. `unpoison run` consumes until nothing is left, and every
    order is accounted for. A plain loop gets the same messages for comparison. Exits with 1 if an order was lost.
    """
    if sys.platform != "linux":
        raise click.ClickException(
            f"The demo crashes real worker processes, and isolating them needs Linux; this is {sys.platform}. "
            f"Run it in a Linux container or virtual machine."
        )
    _remove_earlier()
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    stage = set_up(keep=keep)
    with _ended_by_signals(stage, keep=keep):
        told = _play(stage, messages, seed, to_stderr=as_json)
    if as_json:
        print_json(told.as_json())
    else:
        tell(told, where=f"The orders are in {stage.database}." if keep else "The file stays until the next demo.")
    _tidy(stage, keep=keep)
    if told.lost:
        sys.exit(1)


def _play(stage: Stage, messages: int, seed: int, *, to_stderr: bool) -> Account:
    """Publish, let both consume until unpoison's has nothing left, count."""
    orders = traffic(messages, seed)
    stage.publish(orders)
    click.echo(f"Published {messages:,} orders, {len(orders.poison)} of them poison. To repeat: --seed {seed}", err=to_stderr)
    with ExitStack() as ending:
        consumer = stage.consumer()
        ending.callback(consumer.stop)
        plain = stage.plain_loop()
        ending.callback(plain.stop)
        observer = Observer(stage, orders, consumer, plain)
        ending.callback(observer.close)
        with showing(orders, to_stderr=to_stderr) as show:
            while not consumer.is_over:
                seen = observer.look()
                show(seen)
                _check_time(seen, messages)
                wait([consumer, plain], LOOK_EVERY)
            show(observer.look())
        plain.stop()
        _check_end(consumer, stage)
        return account(stage, seed, orders, observer, consumer)


def _check_time(seen: Snapshot, messages: int) -> None:
    longest = PATIENCE + messages * PATIENCE_EACH
    if seen.seconds > longest:
        raise click.ClickException(
            f"The consumer did not finish within {longest:.0f} s; {seen.waiting + seen.retrying:,} of {messages:,} orders "
            f"still wait. This machine may be very busy: try again with fewer, --messages 100"
        )


def _check_end(consumer: Supervised, stage: Stage) -> None:
    if consumer.gave_up:
        said = "\n".join(stage.log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:])
        raise click.ClickException(
            f"The consumer died {counted(len(consumer.deaths), 'time')}, at last with status {consumer.deaths[-1].status}, so "
            f"the demo gave up. Its last log lines:\n{said}"
        )


@contextmanager
def _ended_by_signals(stage: Stage, *, keep: bool) -> Iterator[None]:
    """Ctrl-C, a closed terminal or SIGTERM ends what the demo started, and says so."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        _tidy(stage, keep=keep, finished=False)
        left = f"The orders are in {stage.database}." if keep else "Its file is removed."
        click.echo(f"\nThe demo was stopped. Every process it started has ended. {left}", err=True)
        sys.exit(130)
    except BaseException:
        _tidy(stage, keep=keep, finished=False)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tidy(stage: Stage, *, keep: bool, finished: bool = True) -> None:
    """Only the SQLite file stays, for the commands to try next; the next demo removes it."""
    if keep or not finished:
        shutil.rmtree(stage.folder, ignore_errors=True)
        return
    shutil.rmtree(stage.spool.folder, ignore_errors=True)
    for file in (stage.ledger, stage.plain_ledger, stage.log, stage.plain_log):
        file.unlink(missing_ok=True)
    (stage.folder / FINISHED).touch()


def _remove_earlier() -> None:
    """Remove the files of demos that ended without --keep. A running demo has no mark yet."""
    for mark in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{FINISHED}"):
        if mark.stat().st_uid == os.getuid():
            shutil.rmtree(mark.parent, ignore_errors=True)
