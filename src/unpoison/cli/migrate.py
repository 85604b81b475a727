"""How do the tables of a database broker come about, if not by themselves?"""

import click

from unpoison.brokers import broker_for, statements_for
from unpoison.port.broker_url import masked


@click.command(
    "migrate",
    epilog="\b\nExamples:\n"
    "  unpoison migrate postgresql://shop@db.example.com/shop\n"
    "  unpoison migrate --sql postgresql:// > migrations/0042_unpoison.sql",
)
@click.argument("url")
@click.option("--sql", is_flag=True, help="Only print the statements, for migrations of your own. Nothing is connected to.")
def command(url: str, sql: bool) -> None:
    """Make the tables that unpoison needs in this database, or bring them to this version.

    Runs and publishes do that by themselves unless the app says create=False. Safe to run again, and by several at once.
    """
    if sql:
        click.echo(statements_for(url))
        return
    statements_for(url)  # refuses brokers that have no tables
    broker = broker_for(url)
    broker.open([])
    broker.close()
    click.echo(f"The tables in {masked(url)} are of this version.")
