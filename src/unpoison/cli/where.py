"""The option --where: which letters does a command take?"""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from unpoison.errors import FilterError
from unpoison.filters.fields import FIELDS, Kind
from unpoison.filters.filter import Filter

Function = TypeVar("Function", bound=Callable[..., Any])


class _FilterType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    name = "filter"

    def convert(self, value: str | Filter, param: click.Parameter | None, ctx: click.Context | None) -> Filter:
        try:
            return Filter.parse(value)
        except FilterError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names of fields, and the values of those that have only a few. Of groups those in the store that the line names."""
        at = max(incomplete.rfind(character) for character in " (-\"'") + 1
        before, begun = incomplete[:at], incomplete[at:]
        if begun.startswith("group:"):
            from unpoison.cli.completion import groups_begun  # noqa: PLC0415 - only where a group is completed

            return [CompletionItem(before + item.value, help=item.help) for item in groups_begun(ctx, begun)]
        endings = [f"{name}{_sign(name)}" for name in FIELDS]
        endings += [f"{name}:{value}" for name, field in FIELDS.items() if begun.startswith(f"{name}:") for value in field.values]
        return [CompletionItem(before + ending) for ending in endings if ending.startswith(begun)]


def _sign(name: str) -> str:
    """What stands behind a field most often."""
    kind = FIELDS[name].kind
    return "." if kind is Kind.HEADER else ">" if kind in (Kind.NUMBER, Kind.AGE) else ":"


def where_option(help: str) -> Callable[[Function], Function]:  # noqa: A002 - as click says
    return click.option("--where", type=_FilterType(), metavar="FILTER", help=f"{help} See unpoison dlq --help.")
