"""Which events are logged, with which fields? Writes the tables of docs/logs.md from the code; `make docs` runs it."""

import logging
import sys
from pathlib import Path

from unpoison.model.events import EVENTS, MEANINGS

PAGE = Path(__file__).parents[1] / "docs" / "logs.md"


def page(text: str) -> str:
    """The page with its tables as they should be."""
    for name, table in (("events", _events()), ("fields", _fields())):
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = f"{before}{begin}\n\n{table}\n{end}{after}"
    return text


def _events() -> str:
    rows = ["| event | level | fields | means |", "|---|---|---|---|"]
    for name, event in EVENTS.items():
        levels = ", ".join(logging.getLevelName(level).lower() for level in event.levels)
        sometimes = ", ".join(f"`{field}`" for field in event.sometimes)
        fields = " ".join(
            filter(None, (", ".join(f"`{field}`" for field in event.always), f"({sometimes})" if sometimes else ""))
        )
        rows.append(f"| `{name}` | {levels} | {fields} | {event.meaning} |")
    return "\n".join(rows) + "\n"


def _fields() -> str:
    return "\n".join(["| field | is |", "|---|---|", *(f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items())]) + "\n"


if __name__ == "__main__":
    before = PAGE.read_text()
    if before != (after := page(before)):
        PAGE.write_text(after)
        sys.stdout.write(f"{PAGE.name}: written\n")
