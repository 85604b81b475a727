"""Which of the news is told, and when?

A state machine without a clock and without I/O: news go in, and `due` gives the notices whose time has come. What it remembers is
bounded, whatever comes.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable

import msgspec

from unpoison.model.wording import counted, in_words
from unpoison.notifying.commands import Commands
from unpoison.notifying.limits import PERIOD, SHOWN, WINDOW, Memory
from unpoison.notifying.news import Begun, Dead, Deleted, Died, News, Over, Spent
from unpoison.notifying.notice import ENDS, Kind, Notice

SETTLE = 5.0
"""Seconds for which a new group is counted before it is told, and for which a dependency has to be down."""
PAUSED_FOR = 60.0
"""Seconds for which a source has to be paused."""
GROWTH = 10
"""Dead letters of one source within the window that are told."""
DEATHS = 5
"""Deaths of workers of one source within the window that are told."""
SPENT_FOR, SPENT_GAP = 300.0, 150.0
"""Seconds for which a retry budget has to be used up, and after which it was not used up meanwhile."""

MOST_PENDING = 1_000
"""New groups that are counted before they are told."""
MOST_LASTING = 1_000
"""Outages and pauses that are known at once."""
MOST_KNOWN = 20_000
"""Groups that are known to have been told."""
MOST_GROUPS = 200
"""Groups that are counted within a window of a source; others are counted together."""
REST = ""
STEP = 30.0
"""Seconds that are counted together."""


class Recent:
    """How often something happened in the window, by group."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, Counter[str]]] = deque()

    def add(self, group: str, now: float) -> None:
        if not self._steps or now - self._steps[-1][0] >= STEP:
            self._steps.append((now, Counter()))
        counts = self._steps[-1][1]
        counts[group if group in counts or len(counts) < MOST_GROUPS else REST] += 1

    def counts(self, now: float) -> Counter[str]:
        while self._steps and now - self._steps[0][0] >= WINDOW:
            self._steps.popleft()
        return sum((counts for _, counts in self._steps), Counter())

    def since(self) -> float:
        return self._steps[0][0] if self._steps else 0.0


class _Group(msgspec.Struct):
    first: Dead
    at: float
    letters: int = 1


class _Lasting(msgspec.Struct):
    news: Begun
    at: float
    is_told: bool = False


class _Spent(msgspec.Struct):
    since: float
    last: float
    retries: int
    doing: str


class Watch:
    """What happens to the sources of one app, as far as people are told of it."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._memory = Memory()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._pending: dict[str, _Group] = {}
        self._letters: dict[str, Recent] = {}
        self._deaths: dict[str, tuple[Recent, Died]] = {}
        self._lasting: dict[str, _Lasting] = {}
        self._spent: dict[str, _Spent] = {}
        self._at_once: list[Notice] = []
        self._kinds: dict[type[News], Callable[..., None]] = {
            Dead: self._dead,
            Died: self._died,
            Begun: self._begun,
            Over: self._over,
            Spent: self._spend,
            Deleted: self._deleted,
        }

    def hear(self, news: News, now: float) -> None:
        self._kinds[type(news)](news, now)

    def _dead(self, news: Dead, now: float) -> None:
        self._letters.setdefault(news.source, Recent()).add(news.fingerprint, now)
        if news.fingerprint in self._known:
            self._known.move_to_end(news.fingerprint)
        elif (pending := self._pending.get(news.fingerprint)) is not None:
            pending.letters += 1
        elif len(self._pending) < MOST_PENDING:
            self._pending[news.fingerprint] = _Group(news, now)

    def _died(self, news: Died, now: float) -> None:
        recent, _ = self._deaths.get(news.source, (Recent(), None))
        recent.add(news.fingerprint, now)
        self._deaths[news.source] = recent, news

    def _begun(self, news: Begun, now: float) -> None:
        if news.subject not in self._lasting and len(self._lasting) >= MOST_LASTING:
            return
        known = self._lasting.setdefault(news.subject, _Lasting(news, now))
        known.news = news._replace(since=known.news.since)

    def _over(self, news: Over, now: float) -> None:
        ended = self._lasting.pop(news.subject, None)
        if ended is not None and ended.is_told:
            kind = ENDS[ended.news.kind]
            lasted = max(0.0, now - ended.at)
            notice = Notice(
                kind=kind,
                subject=news.subject,
                size=lasted,
                title=news.title,
                source=ended.news.source,
                since=ended.news.since,
                bad=f"It lasted {in_words(lasted)}",
                doing=news.doing,
                counts={"seconds": round(lasted, 1)},
                is_end=True,
            )
            self._at_once.append(notice)

    def _spend(self, news: Spent, now: float) -> None:
        known = self._spent.get(news.source)
        if known is None or now - known.last > SPENT_GAP:
            known = self._spent[news.source] = _Spent(now, now, 0, "")
        known.last, known.doing = now, news.doing
        known.retries += news.retries

    def _deleted(self, news: Deleted, now: float) -> None:
        subject, left = f"{Kind.RETENTION}|{news.source}", max(0.0, news.limit - news.waited)
        if not self._memory.may_tell(subject, 1.0, now):
            return
        notice = Notice(
            kind=Kind.RETENTION,
            subject=subject,
            size=1.0,
            title=f"Messages of {news.source!r} are deleted in {in_words(left)}"
            if left
            else f"{news.source!r} loses messages now",
            source=news.source,
            since=now - news.waited,
            bad=f"They have waited for {in_words(news.waited)} of {in_words(news.limit)}",
            doing=news.doing,
            todo=self._commands.of_status(news.source),
            counts={"waited": round(news.waited), "limit": round(news.limit), "left": round(left)},
        )
        self._at_once.append(notice)

    def due(self, now: float, *, is_last: bool = False) -> list[Notice]:
        """What is to be told now. `is_last`: the consumer ends, so nothing new is counted any longer."""
        found, self._at_once = self._at_once, []
        found += self._due_groups(now, SETTLE if not is_last else 0.0)
        found += [notice for source in self._letters if (notice := self._growing(source, now)) is not None]
        found += [notice for source in self._deaths if (notice := self._crash_loop(source, now)) is not None]
        found += [notice for source in self._spent if (notice := self._budget(source, now)) is not None]
        found += [notice for subject in self._lasting if (notice := self._still(subject, now)) is not None]
        return found

    def _due_groups(self, now: float, settle: float) -> list[Notice]:
        due = [print_ for print_, group in self._pending.items() if now - group.at >= settle]
        found = [self._new_group(self._pending.pop(each), now) for each in due]
        self._known.update(dict.fromkeys(due))
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return found

    def _new_group(self, group: _Group, now: float) -> Notice:
        first = group.first
        kind = first.error.partition(":")[0]
        return Notice(
            kind=Kind.NEW_GROUP,
            subject=f"group|{first.fingerprint}",
            size=float(group.letters),
            title=f"New poison in {first.source!r}: {kind}",
            source=first.source,
            since=first.since,
            bad=f"{counted(group.letters, 'dead letter')} so far",
            doing=f"They are kept as dead letters and not tried again ({first.classification}). All other messages go on.",
            todo=self._commands.of_group(first.source, first.fingerprint, first.letter_id),
            counts={"dead": group.letters},
            fingerprint=first.fingerprint,
            classification=first.classification,
            error=first.error,
            letter_id=first.letter_id,
        )

    def _growing(self, source: str, now: float) -> Notice | None:
        counts = self._letters[source].counts(now)
        total, subject = counts.total(), f"{Kind.GROWING}|{source}"
        if total < GROWTH or not self._memory.may_tell(subject, total, now):
            return None
        largest = {group or "others": count for group, count in counts.most_common(SHOWN)}
        return Notice(
            kind=Kind.GROWING,
            subject=subject,
            size=float(total),
            title=f"{counted(total, 'dead letter')} of {source!r} within {in_words(WINDOW)}",
            source=source,
            since=self._letters[source].since(),
            bad=f"{counted(total, 'dead letter')} of {counted(len(counts), 'group')}",
            doing="They are kept as dead letters. All other messages go on.",
            todo=self._commands.of_letters(source),
            counts={"dead": total, "groups": len(counts), "seconds": WINDOW},
            groups=largest,
        )

    def _crash_loop(self, source: str, now: float) -> Notice | None:
        recent, last = self._deaths[source]
        counts = recent.counts(now)
        total, subject = counts.total(), f"{Kind.CRASH_LOOP}|{source}"
        if total < DEATHS or not self._memory.may_tell(subject, total, now):
            return None
        return Notice(
            kind=Kind.CRASH_LOOP,
            subject=subject,
            size=float(total),
            title=f"Workers of {source!r} die again and again",
            source=source,
            since=recent.since(),
            bad=f"{counted(total, 'death')} within {in_words(WINDOW)}",
            doing="Each dead worker is replaced, and its message is charged: one that goes on killing becomes a dead letter.",
            todo=self._commands.of_letters(source),
            counts={"deaths": total, "seconds": WINDOW},
            fingerprint=last.fingerprint,
            error=last.error,
        )

    def _budget(self, source: str, now: float) -> Notice | None:
        spent, subject = self._spent[source], f"{Kind.BUDGET}|{source}"
        lasted = spent.last - spent.since
        if lasted < SPENT_FOR or now - spent.last > SPENT_GAP or not self._memory.may_tell(subject, lasted, now):
            return None
        return Notice(
            kind=Kind.BUDGET,
            subject=subject,
            size=lasted,
            title=f"The retry budget of {source!r} has been used up for {in_words(lasted)}",
            source=source,
            since=spent.since,
            bad=f"{counted(spent.retries, 'retry', 'retries')} put off",
            doing=spent.doing,
            todo=self._commands.of_status(source),
            counts={"retries": spent.retries, "seconds": round(lasted)},
        )

    def _still(self, subject: str, now: float) -> Notice | None:
        """Told again only once it has lasted ten times as long."""
        lasting = self._lasting[subject]
        news, lasted = lasting.news, now - lasting.at
        if lasted < (PAUSED_FOR if news.kind is Kind.PAUSED else SETTLE):
            return None
        was_told, size = lasting.is_told, max(lasted, PAUSED_FOR)
        if not self._memory.may_tell(subject, size, now, None if was_told else PERIOD):
            return None
        lasting.is_told = True
        bad = ", ".join(filter(None, (news.bad, f"for {in_words(now - news.since)} by now" if was_told or not news.bad else "")))
        return Notice(
            kind=news.kind,
            subject=subject,
            size=size,
            title=news.title,
            source=news.source,
            since=news.since,
            bad=bad[:1].upper() + bad[1:],
            doing=news.doing,
            todo=news.todo,
            counts={**news.counts, "seconds": round(now - news.since, 1)},
            error=news.error,
            is_again=was_told,
        )
