"""How do the figures get into the docs? Never by hand: each table stands in a marked block that is written from the data."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.harness import tables
from bench.harness.figures import Result

BLOCK = re.compile(r"(<!-- bench:(?P<name>[\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def written(page: str, results: Mapping[str, Result]) -> str:
    """The page with every marked block filled anew."""

    def fill(block: re.Match[str]) -> str:
        name = block["name"]
        if name == "machine":
            text = machines(list(results.values()))
        elif name in results:
            text = f"{tables.markdown(results[name])}\n\n{tables.footnote(results[name])}"
        else:
            text = f"*Not measured yet. To fill this in: `make bench ARGS='--only {name} --write-docs'`.*"
        return f"{block[1]}{text}\n{block[3]}"

    return BLOCK.sub(fill, page)


def machines(results: Sequence[Result]) -> str:
    """Where it was measured. Results that were kept from earlier runs may come from elsewhere."""
    places = {result.machine: [other.name for other in results if other.machine == result.machine] for result in results}
    if len(places) == 1:
        return f"{next(iter(places))}."
    return "\n".join(f"- {', '.join(names)}: {place}." for place, names in places.items())


def write(page: Path, results: Mapping[str, Result]) -> None:
    page.write_text(written(page.read_text(), results))
