"""How are results shown, on a terminal and in the docs?"""

from rich.table import Table

from bench.harness.figures import Result, Row, Spread

PLAIN = {"messages/s", "calls"}
"""Units whose figures are whole numbers."""

RATIOS = "Each ratio is the median of the ratios of all rounds: it need not be the quotient of the two medians in the table."


def terminal(result: Result) -> Table:
    table = Table(title=f"{result.title} ({result.name})", title_justify="left", title_style="bold")
    headings, lines = _cells(result)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right", overflow="fold")
    for row, line in zip(result.rows, lines, strict=True):
        table.add_row(*line, style="red" if row.met is False else None)
    return table


def markdown(result: Result) -> str:
    """For the docs, without our goals: `make bench` shows and checks those; a reader has goals of their own."""
    headings, lines = _cells(result, with_goals=False)
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *lines])


def footnote(result: Result) -> str:
    """How far the table can be trusted."""
    if result.rounds <= 1:
        return f"Measured on {result.day}, once."
    noise = f", {result.disturbed} of them disturbed by other processes" if result.disturbed else ""
    measured = f"Measured on {result.day} in {result.rounds} rounds{noise}; median (lowest..highest)."
    is_spread = any(row.ratio and row.ratio.low != row.ratio.high for row in result.rows)
    return f"{measured} {RATIOS}" if is_spread else measured


def _cells(result: Result, *, with_goals: bool = True) -> tuple[list[str], list[list[str]]]:
    """The table as text; a column appears only where some row has something in it."""
    units = {row.unit for row in result.rows}
    unit = units.pop() if len(units) == 1 else ""
    columns = {
        "": [row.label for row in result.rows],
        unit or "figure": [spread(row.figure, row.unit) + ("" if unit else f" {row.unit}") for row in result.rows],
        "CPU µs per message": ["" if row.cpu is None else f"{row.cpu:.2f}" for row in result.rows],
        "ratio": ["" if row.ratio is None else spread(row.ratio, "ratio") for row in result.rows],
    }
    if with_goals:
        columns["goal"] = [_goal(row) for row in result.rows]
        columns["met"] = ["" if row.met is None else "yes" if row.met else "no" for row in result.rows]
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    return list(shown), [list(line) for line in zip(*shown.values(), strict=True)]


def spread(spread: Spread, unit: str) -> str:
    if spread.low == spread.high:
        return number(spread.median, unit)
    return f"{number(spread.median, unit)} ({number(spread.low, unit)}..{number(spread.high, unit)})"


def number(figure: float, unit: str) -> str:
    if unit in PLAIN or figure >= 1000:
        return f"{figure:,.0f}"
    if unit == "ratio":
        return f"{figure:.2f}" if figure >= 0.01 else f"{figure:.4f}"  # not 0.00 for what is slower by hundreds
    return f"{figure:.3g}"


def _goal(row: Row) -> str:
    if row.goal is None:
        return ""
    unit = " ×" if row.goal.of == "ratio" else f" {row.unit}"
    return f"{row.goal.sense} {row.goal.limit:g}{unit}"
