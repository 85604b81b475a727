"""Tables with bars in a terminal: the same text goes into a pipe, without colours and 80 columns wide."""

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDEST = 120
IN_A_PIPE = 80
GAP = 2
FEW, FEWEST = 8, 4
"""Characters of a bar below which headings give way to it, and below which it is left out."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = " ▁▂▃▄▅▆▇█"


def chart_width(screen: Console) -> int:
    return min(screen.width, WIDEST) if screen.is_terminal else IN_A_PIPE


def table(header: Sequence[str], cells: Sequence[Sequence[str]], bars: Sequence[Text]) -> Table:
    made = Table(box=None, header_style="dim", pad_edge=False, padding=(0, GAP, 0, 0))
    for place, name in enumerate(header):
        made.add_column(name, no_wrap=True, justify="left" if place == 0 else "right")
    if any(bars):
        made.add_column("", no_wrap=True)
    for row, bar in zip(cells, bars, strict=True):
        made.add_row(*row, bar) if any(bars) else made.add_row(*row)
    return made


def room_for_bars(width: int, cells: Sequence[Sequence[str]], header: Sequence[str]) -> int:
    """What is left for the bars beside the widest cell of each column. 0, and so no bars, where that shows nothing."""
    used = sum(max(map(len, column)) + GAP for column in zip(header, *cells, strict=True))
    return width - used if width - used >= FEWEST else 0


def notes(texts: Sequence[str]) -> list[RenderableType]:
    return [Padding(Text(text, style="dim"), (0, 0, 0, GAP), expand=False) for text in texts]


def bar(share: float, room: int, colour: str) -> Text:
    """What is more than nothing can be seen."""
    if not room:
        return Text()
    eighths = max(round(share * room * 8), 1 if share > 0 else 0)
    return Text(("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip(), style=colour)


def sparks(counts: Sequence[float], highest: float) -> str:
    """Zero is a blank, and a single one can be seen."""
    levels = (0 if not count else max(1, round(count / highest * (len(_LEVELS) - 1))) for count in counts)
    return "".join(_LEVELS[level] for level in levels).rstrip()
