"""How does a simulation look as a picture?"""

from collections.abc import Iterator, Sequence

from unpoison.cli.simulation_chart import (
    FATE_HEADER,
    TROUBLE,
    Courses,
    Simulated,
    binned,
    courses,
    fate_notes,
    fates,
    headline,
    span,
    told_lines,
    told_title,
)
from unpoison.cli.svg_sheet import LEFT, LINE, MARGIN, RIGHT, ROW, WIDTH, Sheet
from unpoison.model.wording import one_line
from unpoison.planning import lasting

BINS, HEIGHT = 117, 44
"""Bars of a histogram and how high they are."""
COLUMNS = (300, 400, 500, 600, WIDTH - MARGIN)
"""Where the figures of a fate end."""
FIGURES = {1: (WIDTH - MARGIN,), 3: (640, 715, WIDTH - MARGIN)}
"""Where the figures beside a histogram end, by how many there are."""


def svg(subjects: Sequence[Simulated]) -> str:
    sheet = Sheet()
    for place, shown in enumerate(subjects):
        sheet.y += 1.5 * MARGIN if place else 0
        _simulated(sheet, shown)
    return sheet.document("What becomes of a source in trouble, with and without flow control", " ".join(_in_words(subjects)))


def _simulated(sheet: Sheet, shown: Simulated) -> None:
    if shown.source is not None:
        sheet.y += 8
        sheet.text(one_line(shown.source), "ink title")
        sheet.y += 6
    sheet.y += 4
    sheet.line(headline(shown), "ink title")
    _fates(sheet, shown)
    for each in courses(shown):
        _courses(sheet, shown, each)
    if shown.outcomes[0].changes:
        sheet.y += 16
        sheet.line(told_title(shown), "ink head")
        for moment, text in told_lines(shown):
            sheet.y += LINE
            sheet.text(moment, "dim")
            sheet.text(text, "dim", x=MARGIN + 80)


def _fates(sheet: Sheet, shown: Simulated) -> None:
    sheet.y += 16 + LINE
    for words, x in zip(FATE_HEADER[1:], COLUMNS, strict=True):
        sheet.text(words, "dim", x=x, end=True)
    for row in fates(shown):
        sheet.y += ROW
        sheet.text(row.name)
        for words, x in zip(row[1:], COLUMNS, strict=True):
            sheet.text(words, x=x, end=True)
    sheet.notes([" ".join(fate_notes(shown))])


def _courses(sheet: Sheet, shown: Simulated, drawn: Courses) -> None:
    sheet.y += 16
    sheet.line(drawn.title, "ink head")
    columns = FIGURES[len(drawn.header)]
    for words, x in zip(drawn.header, columns, strict=True):
        sheet.text(words, "dim", x=x, end=True)
    highest = max(max(row.series) for row in drawn.rows) or 1.0
    last = len(drawn.rows) - 1
    for at, row in enumerate(drawn.rows):
        sheet.y += HEIGHT + 12
        sheet.text(row.name)
        kind = "start" if at == 0 else "down" if at == last else "retry"
        sheet.histogram(binned(row.series, BINS), highest, HEIGHT, kind)
        for words, x in zip(row.cells, columns, strict=True):
            sheet.text(words, x=x, end=True)
    _axis(sheet, shown)


def _axis(sheet: Sheet, shown: Simulated) -> None:
    """When the trouble was, under the histograms."""
    begin, end = (LEFT + at * (RIGHT - LEFT) for at in span(shown))
    sheet.y += LINE + 3
    sheet.rectangle("down", begin, sheet.y - 17, end - begin, 3)
    sheet.text(f"{TROUBLE[shown.scenario.kind]} for {lasting(shown.scenario.length)}", "dim", x=begin)
    sheet.text(lasting(shown.seconds), "dim", x=RIGHT, end=True)


def _in_words(subjects: Sequence[Simulated]) -> Iterator[str]:
    """For those who do not see the picture."""
    for shown in subjects:
        if shown.source is not None:
            yield f"{one_line(shown.source)}:"
        yield f"{headline(shown)}."
        loads = courses(shown)[0]
        for fate, load in zip(fates(shown), loads.rows, strict=True):
            yield f"{fate.name}: {fate.dead} dead letters, {load.cells[0]} calls meanwhile, caught up {fate.caught_up}."
