"""What does bezoar do with poison? Shown on twenty orders, and counted: where each of them went."""

import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import click
from rich.text import Text

from bezoar.app import App
from bezoar.brokers import broker_for
from bezoar.cli.json_output import print_json
from bezoar.cli.logs import configure
from bezoar.cli.screen import console, letter_table
from bezoar.deadletters.record import DeadLetter

APP = "bezoar.cli.demo.orders"
FOLDER = "bezoar-demo-"
FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Accounting:
    """Where the orders went. Each number is asked of whoever has it, none is worked out from the others but `lost`."""

    published: int
    done: int
    dead: int
    discarded: int
    waiting: int

    @property
    def lost(self) -> int:
        return self.published - self.done - self.dead - self.discarded - self.waiting


@click.command("demo", epilog="\b\nExamples:\n  bezoar demo\n  bezoar demo --keep\n  bezoar demo --json")
@click.option("--keep", is_flag=True, help="Keep the SQLite file. Without it the next demo removes it.")
@click.option("--json", "as_json", is_flag=True, help="Print the accounting and the dead letters as one JSON document.")
def command(keep: bool, as_json: bool) -> None:
    """Watch poison messages being isolated.

    Publishes twenty orders to a throw-away SQLite file, among them a handful that fail for good, are not even JSON, or
    heal by themselves; consumes until nothing is left; and accounts for every one.
    """
    _remove_earlier()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    url = f"sqlite:///{folder / 'shop.db'}"
    # The dead letters are shown at the end; what else goes wrong should be seen at once.
    configure("error", "text").addFilter(lambda record: getattr(record, "event", "") != "dead")
    accounting, letters = _play(url)
    if as_json:
        print_json(
            {"url": url, **asdict(accounting), "lost": accounting.lost, "dead_letters": [each.as_json() for each in letters]}
        )
    else:
        _print(accounting, letters, url)
    if not keep:
        (folder / FINISHED).touch()
    if accounting.lost:
        sys.exit(1)


def _play(url: str) -> tuple[Accounting, list[DeadLetter]]:
    """Publish, consume until empty, count."""
    os.environ["BEZOAR_URL"] = url
    shop = import_module(APP)
    app: App = shop.app
    published = app.publish_many(shop.SOURCE, shop.published())
    click.echo(f"Published {len(published)} orders to a SQLite file, some of them poison. Consuming …", err=True)
    tally = app.run(until_empty=True).tallies()[shop.SOURCE]
    app.close()
    broker = broker_for(url)
    broker.open([], create=False)
    depth = broker.depth(shop.SOURCE)
    broker.close()
    waiting = depth.ready + depth.delayed + depth.leased
    return Accounting(len(published), tally.done, depth.dead, tally.discarded, waiting), list(app.dlq(shop.SOURCE).letters())


def _print(accounting: Accounting, letters: list[DeadLetter], url: str) -> None:
    screen = console()
    screen.print(
        Text(
            f"\npublished {accounting.published} = done {accounting.done} + dead {accounting.dead} "
            f"+ discarded {accounting.discarded} + waiting {accounting.waiting}, lost {accounting.lost}\n",
            style="bold",
        )
    )
    screen.print(letter_table(letters, screen.width))
    click.echo(
        f"\nThe file stays until the next demo. Try next:\n\n"
        f"  export BEZOAR_URL={url}\n"
        f"  bezoar dlq show {letters[0].id} --source orders\n"
        f"  bezoar dlq replay --all --source orders\n"
        f"  bezoar run {APP}:app --until-empty"
    )


def _remove_earlier() -> None:
    """Files of demos that have ended and were not to be kept. A demo that is running has no mark yet."""
    for mark in Path(tempfile.gettempdir()).glob(f"{FOLDER}*/{FINISHED}"):
        if mark.stat().st_uid == os.getuid():
            shutil.rmtree(mark.parent, ignore_errors=True)
