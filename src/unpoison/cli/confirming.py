"""May this be done? A person at a terminal is asked; a script has to say --yes."""

import sys

import click


def confirm(question: str, *, yes: bool, typed: str | None = None) -> None:
    """Go on only with a yes, or with the right word typed. Where nobody can be asked it is refused."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.ClickException(f"{question} There is no terminal to ask on. To do it, add --yes.")
    if typed is None:
        agreed = click.confirm(question, err=True)
    else:
        agreed = click.prompt(f"{question} To do it, type {typed!r}", default="", show_default=False, err=True) == typed
    if not agreed:
        click.echo("Nothing was changed.", err=True)
        sys.exit(1)
