"""How does a plan look as a picture?"""

from collections.abc import Iterator, Sequence

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
from unpoison.cli.svg_sheet import HEIGHT, LEFT, LINE, MARGIN, MIDDLE, RIGHT, ROW, WIDTH, Sheet
from unpoison.model.wording import one_line
from unpoison.planning import INSTANT, Plan, histogram, lasting

BUCKETS = 100


def svg(subjects: Sequence[Subject]) -> str:
    sheet = Sheet()
    for place, subject in enumerate(subjects):
        sheet.y += 1.5 * MARGIN if place else 0
        _subject(sheet, subject)
    return sheet.document("What retries add, and when they come", " ".join(_in_words(subjects)))


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
    sheet.section("Retry traffic", "added", "dead letters")
    rows = load_rows(plan)
    longest = max(row.length for row in rows)
    for row, kind in zip(rows, ("first", "retry", "retry", "down"), strict=True):
        sheet.y += ROW
        sheet.text(row.label)
        sheet.bar(kind, row.length / longest)
        sheet.text(row.rate, x=MIDDLE - 75, end=True)
        sheet.text(row.added, x=MIDDLE, end=True)
        sheet.text(row.dead, x=WIDTH - MARGIN, end=True)
    sheet.notes(load_notes(plan))


def _schedule(sheet: Sheet, plan: Plan) -> None:
    sheet.section(backoff_line(plan), "half by", "all by")
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
    sheet.notes([*notes, last + shades])


def _burst(sheet: Sheet, plan: Plan) -> None:
    sheet.section(BURST_TITLE, "most in 1 s", f"in {lasting(INSTANT)}")
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
    sheet.notes(burst_notes(plan))


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
