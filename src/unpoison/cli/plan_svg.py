"""How does a plan look as a picture?

One SVG file that needs nothing else: no script, no font, no link. It brings its own background, so it can be read on a light
page and on a dark one, and follows the colours that the reader prefers. Its title and description say in words what it shows.
"""

import textwrap
from collections.abc import Iterator, Sequence
from html import escape

from unpoison.cli.plan_chart import (
    BURST_TITLE,
    Subject,
    backoff_line,
    burst_notes,
    burst_rows,
    delay_text,
    headline,
    load_notes,
    load_rows,
    schedule_notes,
    start_text,
    steps_shown,
)
from unpoison.model.wording import one_line
from unpoison.planning import INSTANT, Plan, histogram, lasting

WIDTH, MARGIN = 840, 28
LINE, ROW = 19, 26
LEFT, RIGHT, MIDDLE = 190, 540, 715
"""Bars are drawn between the first two, their labels left of them. Figures end at the third and at the right margin."""
BUCKETS, HEIGHT = 100, 64
CHARACTERS = 108
"""So many of a note fit into a line."""

_STYLE = """
  .card{fill:#fff;stroke:#d1d9e0} .ink{fill:#1f2328} .dim{fill:#59636e} .warn{fill:#9a3412} .axis{stroke:#d1d9e0}
  .first{fill:#57606a} .retry{fill:#d97706} .down{fill:#cf222e}
  .p50{fill:#1d5fd6} .p90{fill:#7da7f0} .max{fill:#cfdffb} .start{fill:#1d5fd6}
  text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-variant-numeric:tabular-nums}
  .title{font-size:18px;font-weight:600} .head{font-weight:600}
  @media (prefers-color-scheme:dark){
    .card{fill:#0d1117;stroke:#3d444d} .ink{fill:#e6edf3} .dim{fill:#9aa4af} .warn{fill:#f0b072} .axis{stroke:#3d444d}
    .first{fill:#8b949e} .retry{fill:#e3a13b} .down{fill:#ff7b72}
    .p50{fill:#6aa5ff} .p90{fill:#39629f} .max{fill:#20395e} .start{fill:#6aa5ff}
  }
"""


class Sheet:
    """A column that is filled from the top."""

    def __init__(self) -> None:
        self.y = float(MARGIN)
        self.parts: list[str] = []

    def text(self, words: str, kind: str = "ink", x: float = MARGIN, *, up: float = 0, end: bool = False) -> None:
        anchor = ' text-anchor="end"' if end else ""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{self.y - up:g}"{anchor}>{escape(words)}</text>')

    def line(self, words: str, kind: str = "ink") -> None:
        self.y += LINE
        self.text(words, kind)

    def paragraph(self, words: str, kind: str) -> None:
        for part in textwrap.wrap(words, CHARACTERS):
            self.line(part, kind)

    def bar(self, kind: str, share: float) -> None:
        """From the left, above the line that is written on. What is more than nothing can be seen."""
        width = max(share * (RIGHT - LEFT), 1.5) if share > 0 else 0.0
        box = f'x="{LEFT}" y="{self.y - 11:.1f}" width="{width:.1f}" height="14"'
        self.parts.append(f'<rect class="{kind}" {box} rx="2"/>')

    def histogram(self, counts: Sequence[int], highest: int) -> None:
        """Upright bars that stand on the line."""
        width = (RIGHT - LEFT) / len(counts)
        for place, count in enumerate(counts):
            if count:
                size = max(count / highest * HEIGHT, 1.0)
                x = LEFT + place * width
                box = f'x="{x:.1f}" y="{self.y - size:.1f}" width="{width - 0.6:.1f}" height="{size:.1f}"'
                self.parts.append(f'<rect class="start" {box}/>')
        self.parts.append(f'<path class="axis" d="M{LEFT} {self.y:g}H{RIGHT}"/>')


def svg(subjects: Sequence[Subject]) -> str:
    sheet = Sheet()
    for place, subject in enumerate(subjects):
        sheet.y += 1.5 * MARGIN if place else 0
        _subject(sheet, subject)
    height = sheet.y + MARGIN
    described = " ".join(_in_words(subjects))
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
            '<title id="title">What retries add, and when they come</title>',
            f'<desc id="desc">{escape(described)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"/>',
            *sheet.parts,
            "</svg>\n",
        ]
    )


def _subject(sheet: Sheet, subject: Subject) -> None:
    if subject.source is not None:
        sheet.y += 8
        sheet.text(one_line(subject.source), "ink title")
        sheet.y += 6
    if subject.plan is not None:
        sheet.y += 4
        sheet.line(headline(subject.plan), "ink title")
        _traffic(sheet, subject.plan)
        if subject.plan.scenario.retries:
            _schedule(sheet, subject.plan)
        if subject.plan.schedule.last.max:
            _burst(sheet, subject.plan)
    for warning in subject.warnings:
        sheet.y += 8
        sheet.paragraph(f"Warning: {warning.text}", "warn")


def _traffic(sheet: Sheet, plan: Plan) -> None:
    _section(sheet, "Retry traffic", "added", "dead letters")
    rows = load_rows(plan)
    longest = max(row.length for row in rows)
    for row, kind in zip(rows, ("first", "retry", "retry", "down"), strict=True):
        sheet.y += ROW
        sheet.text(row.label)
        sheet.bar(kind, row.length / longest)
        sheet.text(row.rate, x=MIDDLE - 75, end=True)
        sheet.text(row.added, x=MIDDLE, end=True)
        sheet.text(row.dead, x=WIDTH - MARGIN, end=True)
    _notes(sheet, load_notes(plan))


def _schedule(sheet: Sheet, plan: Plan) -> None:
    _section(sheet, backoff_line(plan), "half by", "all by")
    longest = plan.schedule.last.max
    for step in steps_shown(plan):
        sheet.y += ROW
        sheet.text(f"attempt {step.attempt:,}")
        sheet.text(delay_text(step), "dim", x=LEFT - 8, end=True)
        for kind, time in (("max", step.start.max), ("p90", step.start.p90), ("p50", step.start.p50)):
            sheet.bar(kind, time / longest if longest else 0)
        sheet.text(start_text(step.start.p50, plan), x=MIDDLE, end=True)
        sheet.text(lasting(step.start.max), x=WIDTH - MARGIN, end=True)
    *notes, last = schedule_notes(plan)
    shades = " Shades: half, 90 % and all have started by then." if plan.scenario.backoff.jitter else ""
    _notes(sheet, [*notes, last + shades])


def _burst(sheet: Sheet, plan: Plan) -> None:
    _section(sheet, BURST_TITLE, "most in 1 s", f"in {lasting(INSTANT)}")
    rows, until = burst_rows(plan), plan.schedule.last.max
    histograms = [histogram(row.burst, BUCKETS, until) for row in rows]
    highest = max(map(max, histograms))
    for row, counts in zip(rows, histograms, strict=True):
        sheet.y += HEIGHT + 14
        sheet.text(row.label)
        sheet.histogram(counts, highest)
        sheet.text(f"{row.second:,}", x=MIDDLE, end=True)
        sheet.text(f"{row.instant:,}", x=WIDTH - MARGIN, end=True)
    sheet.y += LINE
    sheet.text("0 s", "dim", x=LEFT)
    sheet.text(lasting(until), "dim", x=RIGHT, end=True)
    _notes(sheet, burst_notes(plan))


def _section(sheet: Sheet, name: str, *columns: str) -> None:
    sheet.y += 16
    sheet.line(name, "ink head")
    for words, x in zip(columns, (MIDDLE, WIDTH - MARGIN), strict=True):
        sheet.text(words, "dim", x=x, end=True)


def _notes(sheet: Sheet, texts: Sequence[str]) -> None:
    sheet.y += 4
    for text in texts:
        sheet.paragraph(text, "dim")


def _in_words(subjects: Sequence[Subject]) -> Iterator[str]:
    """For those who do not see the picture."""
    for subject in subjects:
        if subject.source is not None:
            yield f"{one_line(subject.source)}:"
        if subject.plan is not None:
            yield f"{headline(subject.plan)}."
            for row in load_rows(subject.plan)[1:]:
                yield f"{row.label}: {row.rate}, {row.added}."
            last = subject.plan.schedule.last
            half = start_text(last.p50, subject.plan)
            yield f"The last attempt starts after {half} for half of the messages, {lasting(last.max)} at most."
        yield from (warning.text for warning in subject.warnings)
