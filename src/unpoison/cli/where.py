"""A filter as the value of an option: how is it read and completed?"""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from unpoison.errors import FilterError
from unpoison.filters.fields import FIELDS, Kind
from unpoison.filters.filter import Filter


class FilterType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    name = "filter"

    def __init__(self, groups: Callable[[click.Context, str], list[CompletionItem]]) -> None:
        self._groups = groups

    def convert(self, value: str | Filter, param: click.Parameter | None, ctx: click.Context | None) -> Filter:
        try:
            return Filter.parse(value)
        except FilterError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names of fields, and the values of those that have only a few; of groups what `groups` offers."""
        at = max(incomplete.rfind(character) for character in " (-\"'") + 1
        before, begun = incomplete[:at], incomplete[at:]
        if begun.startswith("group:"):
            return [CompletionItem(before + item.value, help=item.help) for item in self._groups(ctx, begun)]
        endings = [f"{name}{_sign(name)}" for name in FIELDS]
        endings += [f"{name}:{value}" for name, field in FIELDS.items() if begun.startswith(f"{name}:") for value in field.values]
        return [CompletionItem(before + ending) for ending in endings if ending.startswith(begun)]


def _sign(name: str) -> str:
    """What stands behind a field most often."""
    kind = FIELDS[name].kind
    return "." if kind is Kind.HEADER else ">" if kind in (Kind.NUMBER, Kind.AGE) else ":"
