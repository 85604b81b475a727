"""The option --where, and the groups that the shell offers for it and for arguments: those of the store that the line names."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stderr
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from unpoison.cli.target import fleet
from unpoison.cli.where import FilterType
from unpoison.model.wording import first_line, one_line
from unpoison.store.letters.values import StoredGroup

Function = TypeVar("Function", bound=Callable[..., Any])

MOST = 50
"""Groups that are offered: the largest."""


def complete_group(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For an argument that names a group."""
    return groups_begun(ctx, incomplete)


def groups_begun(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """As group:FINGERPRINT, each with its error. Whatever is wrong, a shell is told nothing and waits for nobody."""
    if not incomplete.startswith("group:"[: len(incomplete)]):
        return []
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # noqa: PTH123 - what an app prints is not for the shell
            found = _groups(ctx)
    except (Exception, SystemExit):
        return []
    begun = incomplete.removeprefix("group:") if incomplete.startswith("group:") else ""
    said = ((group.fingerprint, one_line(f"{group.error_type}: {first_line(group.error)}", 60)) for group in found)
    return [CompletionItem(f"group:{name}", help=error) for name, error in said if name.startswith(begun)]


def _groups(ctx: click.Context) -> Sequence[StoredGroup]:
    store = fleet(*(ctx.params.get(name) for name in ("app", "url", "store"))).store
    if not store:
        return []
    from unpoison.store.letters.sql_letters import letters_for  # noqa: PLC0415 - only where something is completed

    with closing(letters_for(store)) as letters:
        letters.open(create=False)
        return letters.groups(limit=MOST)


def where_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - as click says
    return click.option("--where", type=FilterType(groups_begun), metavar="FILTER", help=f"{help} See unpoison dlq --help.")
