"""How does `unpoison --help` stay fast? A group knows its commands by name and imports one only when it is used."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands as name → (module, sentence). The module has the command as `command`."""

    def __init__(self, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, sentence = self.table[cmd_name]
        found: click.Command = import_module(module).command
        found.short_help = sentence
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.table, 1)
            meant = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(self.table)}."
            ctx.fail(f"No such command {name!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self.table.items()])
