"""What a broker must be able to do.

Two small Protocols, batch in and batch out. An adapter knows messages, counters and settlements; it decides nothing:
whether a message is retried or given up comes from the consumer as a `Settlement`. It imports values and this
module, never the consumer, never another broker, and is done when it passes `unpoison.testing`.

Every method may raise BrokerUnavailable: nothing was confirmed, so nothing may be taken for done. A publish answers for each
message: stored, refused for certain, or unknown because no answer came (`Published`); `unpoison.flow.sending` makes one error of
the answers.
"""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from unpoison.errors import BrokerUnavailable, ConfigError, Refusal, UnpoisonError
from unpoison.model.dead_letter import DeadLetter, WholeLetter
from unpoison.model.message import Counters, Delivery, Native, Outgoing


class Refused(NamedTuple):
    """Why a message is certainly not stored."""

    refusal: Refusal
    reason: str
    cause: UnpoisonError | None = None
    """Where we refused it ourselves, before it was sent."""


class Published(msgspec.Struct, frozen=True):
    """What became of the messages of one publish, by their positions in it. Those in neither mapping are stored."""

    refused: Mapping[int, Refused] = {}
    unknown: Mapping[int, str] = {}
    """No answer came, and this is why: they may be stored."""
    created: Collection[str] = ()
    """Sources that did not exist before."""


STORED = Published()
"""All of them are."""

UNCONFIRMED = "Only what was confirmed counts as done."
"""Said with every error of a broker that does not say more."""


def not_sent(error: UnpoisonError, refusal: Refusal | None = None) -> Refused:
    """For messages that were not sent because of this error. Without a refusal: the source cannot be had, or not now."""
    return Refused(refusal or (Refusal.NO_SUCH_SOURCE if isinstance(error, ConfigError) else Refusal.NOT_SENT), str(error), error)


def without_source(messages: Sequence[Outgoing], open_source: Callable[[str], object]) -> dict[int, Refused]:
    """Open the source of each message. Returns those that cannot be sent because that failed."""
    failed: dict[str, Refused] = {}
    for source in {message.source for message in messages}:
        try:
            open_source(source)
        except (ConfigError, BrokerUnavailable) as error:
            failed[source] = not_sent(error)
    if not failed:
        return {}
    return {number: failed[message.source] for number, message in enumerate(messages) if message.source in failed}


def all_or_none(messages: Sequence[Outgoing], culprits: Mapping[int, Refused]) -> Published:
    """For a broker that stores all messages of a batch or none: these are refused, so the others were not sent."""
    why = f"It was not sent: all of a batch is stored or none, and the message at position {min(culprits)} was refused."
    others = Refused(Refusal.NOT_SENT, why)
    return Published({number: culprits.get(number, others) for number in range(len(messages))})


def by_source(messages: Sequence[Outgoing]) -> dict[str, list[Outgoing]]:
    found: dict[str, list[Outgoing]] = {}
    for message in messages:
        found.setdefault(message.source, []).append(message)
    return found


Ring = Callable[[], None]
Progress = Callable[[int, int], None]
"""Called during long work with (letters dealt with so far, how many there are)."""


class Capability(enum.Flag):
    """What a broker can keep; start-up checks and the contract suite go by these and never by a broker's name."""

    DURABLE = enum.auto()
    """What was published, retried or dead-lettered survives the end of every process."""
    SHARED = enum.auto()
    """Several processes can use it at once."""
    FENCED = enum.auto()
    """A settle by an owner that lost its messages does nothing and is reported."""
    ATOMIC = enum.auto()
    """Retry, dead letter and replay are one step: no crash can leave two copies. A batch for one source is stored whole or not
    at all."""
    BROWSE = enum.auto()
    """Dead letters can be looked at, picked and removed one by one."""
    EXACT_DEPTH = enum.auto()
    """`depth` counts, it does not estimate."""


ALL_CAPABILITIES = (
    Capability.DURABLE | Capability.SHARED | Capability.FENCED | Capability.ATOMIC | Capability.BROWSE | Capability.EXACT_DEPTH
)


class Finding(msgspec.Struct, frozen=True):
    """Something about the broker that a person should know, with what to do about it."""

    name: str
    problem: str
    fix: str
    loses: bool = False
    stops: bool = False
    """Nothing can be published or consumed, or some messages are stuck, until it is fixed."""


class Depth(msgspec.Struct, frozen=True):
    """How many messages of one source are where."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0

    @property
    def empty(self) -> bool:
        """Nothing is ready, delayed or held by anyone."""
        return not (self.ready or self.delayed or self.leased)


class Waits(msgspec.Struct, frozen=True):
    """What keeps a source from being empty: when its next delayed message is due, as time since 1970, and which other consumers
    hold messages (host:pid)."""

    due: float | None = None
    holders: tuple[str, ...] = ()


class Kept(msgspec.Struct, frozen=True):
    """A message that stays for another start, `after` seconds from now, with these counters."""

    delivery: Delivery
    counters: Counters
    after: float = 0.0


class Dead(msgspec.Struct, frozen=True):
    """A message that moves to the DLQ."""

    delivery: Delivery
    letter: DeadLetter


class Settlement(msgspec.Struct, frozen=True):
    """The verdicts on a batch, as a broker needs them: most messages are gone, a few are kept, hardly any is dead."""

    gone: Sequence[Delivery] = ()
    kept: Sequence[Kept] = ()
    dead: Sequence[Dead] = ()

    def counts_more(self) -> bool:
        """Whether more is held against a message than before, or one is given up. If a power cut undid that, a message would
        get more attempts than allowed; undoing the rest only makes some run once more."""
        return bool(self.dead) or any(kept.counters.counts_more(kept.delivery.counters) for kept in self.kept)


class Leftovers(msgspec.Struct, frozen=True):
    """What unpoison has at a broker for one source and group, for users who stop using it."""

    source: str
    group: str
    waiting: int = 0
    """Messages that wait outside of the source, for their time or for another start."""
    later: int = 0
    """Those of them whose time has not come."""
    suspects: int = 0
    """Those of them that may have taken a process down."""
    repeats: int = 0
    """Messages in the source that are done, and that another consumer of the group handles again."""
    dead: int = 0
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    removal: tuple[str, ...] = ()
    """The commands that remove these topics and groups."""


class Broker(Protocol):
    """One connection to a broker. The consumer of a source has one of its own, publishing has another."""

    capabilities: Capability

    def inherited_fds(self) -> Sequence[int]:
        """File descriptors that every worker inherits. While any process holds one, the broker considers this consumer alive."""

    def open(self, sources: Sequence[str], *, create: bool = True, ring: Ring | None = None) -> Sequence[Finding]:
        """Connect; verify what these sources need, or create it. What exists already is never changed.

        From then on `ring` is called, from any thread, whenever `fetch` may have something new: a message, a delay
        that is over, one that a dead consumer left. Too often is allowed, too rarely is not.
        """

    def publish(self, messages: Sequence[Outgoing]) -> Published:
        """Store these, and say of each what became of it. Durable when it returns.

        ATOMIC: all messages of one source are stored, or none. Raises BrokerUnavailable only if nothing of all this was sent;
        from the first byte on, a message for which no answer comes is `unknown`.
        """

    def fetch(self, source: str, limit: int) -> Sequence[Delivery]:
        """At most `limit` messages that are ready now; they are ours until settled. Does not wait.

        Raises OwnershipLost if what this connection held was taken over: then nothing was taken, and the next call starts afresh.
        """

    def has_suspect(self, source: str) -> bool:
        """Whether a message waits that must run alone. A look: nothing is taken, nothing counted."""

    def take_suspect(self, source: str, by: str) -> Delivery | None:
        """Take one message that must run alone, for the consumer `by`. Taken means started: its start is on record, durably,
        when this returns, and stays there (`Counters.marked`) unless a settle says otherwise."""

    def settle(self, settlement: Settlement) -> "Sequence[str | None] | None":
        """Carry it out: copies first, letting go last, so that a crash in between repeats and never loses.

        Returns the ids of the dead letters in the order of `settlement.dead`, for the log; None where it does not know the id.

        Raises OwnershipLost if some of the messages belong to another consumer by now: these are left as they are, the others
        are settled.
        """

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Keep these for another while. Raises OwnershipLost like settle."""

    def depth(self, source: str) -> Depth:
        """How many messages of the source are where."""

    def close(self) -> None:
        """Give the connection up. Settle first: what is still held comes back as if the consumer had vanished."""


WHOLE_BYTES = 32 * 1024 * 1024
"""Of the bodies of letters that are taken together."""


class DeadLetters(Protocol):
    """The DLQ of one source. Each call is one step that a crash cannot cut in half."""

    broker: Broker
    """The connection it works on; the code that opened the DLQ closes it."""

    def count(self, state: str = "dead") -> int:
        """How many letters wait (or are in another state)."""

    def freeze(self) -> str:
        """Where the DLQ ends now. A replay works up to here, so that what fails again cannot keep it going for ever."""

    def browse(
        self, *, only: str | None = None, after: str = "", until: str = "", limit: int = 100, state: str | None = "dead"
    ) -> Sequence[DeadLetter]:
        """Letters in the order they came: behind `after` and up to `until`. Changes nothing.

        `only` is the id of a letter; where no letter has it, the id of a message, and all letters of that are returned.
        """

    def replay(self, letter_ids: Sequence[str]) -> Sequence[str]:
        """Send these to their source again; returns those that were sent. One that another operator took is left out."""

    def remove(self, letter_ids: Sequence[str], *, state: str = "dead", keep_as: str | None = None) -> Sequence[str]:
        """Delete those that are in this state, or keep them as "discarded" and the like; returns those that were changed."""

    def whole(self, *, after: str = "", limit: int = 100, most_bytes: int = WHOLE_BYTES) -> Sequence[WholeLetter]:
        """Letters that wait, as `browse` gives them, with all that `send_back` needs. Changes nothing. Stops with the letter that
        makes them more than so many bytes, since they are in memory together; so there is at least one, if any waits."""

    def send_back(self, letters: Sequence[WholeLetter]) -> Published:
        """Send the messages of letters that are no longer here, as `replay` does: to the group that gave them up and to no other,
        with the envelope that they had and the counters of `DeadLetter.replayed`. Those of other systems go where they came from.
        Says what became of each; raises BrokerUnavailable only if nothing was sent."""


@runtime_checkable
class TellsNative(Protocol):
    """A broker that knows more about a message than unpoison's own fields."""

    def native(self, delivery: Delivery) -> Native:
        """What the broker itself says about a message that was fetched. Asked only where the handler takes the Delivery, and asks
        no server. It may raise: then the handler gets what stands in the Delivery."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A broker that takes messages before `fetch` asks for them. The others have nothing to stop while a source is paused."""

    def pause(self, source: str) -> None:
        """Stop reading ahead, and hand back what was read and not yet handed out by `fetch`: it is not charged, and comes back
        neither as returned nor as suspect. What `fetch` has handed out stays ours.

        Membership is kept: other consumers get no partition and no lease because of it. Until `resume`, a `fetch` takes no more
        than it is asked for. Calling it again does nothing.
        """

    def resume(self, source: str) -> None:
        """Read ahead again. Does nothing unless the source is paused."""


@runtime_checkable
class Forgets(Protocol):
    """A broker that may take away what waits for too long, by a setting of its own."""

    def deletes_after(self, source: str) -> float | None:
        """Seconds after its publish at which a waiting message of this source is deleted, or made a dead letter because it has
        expired; None: never. Asks the server."""


@runtime_checkable
class HasLog(Protocol):
    """A broker that keeps messages in a log, in which a group of consumers has a position."""

    def lag(self, depth: Depth) -> int:
        """How many messages the group has not finished, up to the end of the log. Asks no server."""


@runtime_checkable
class TellsOldest(Protocol):
    """A broker that knows without a search how long its messages wait."""

    def oldest(self, source: str) -> float | None:
        """For how many seconds the message that waits longest has been ready, by the server's clock; None if none is."""


@runtime_checkable
class ExplainsWaits(Protocol):
    """A broker that knows more than numbers about what is delayed or held."""

    def waits(self, source: str) -> Waits:
        """Asked about once a second, and only while a run waits for the source to be empty."""


@runtime_checkable
class ListsIds(Protocol):
    """A DLQ that can list its letters without reading them."""

    def ids(self, *, after: str = "", until: str = "", limit: int = 100, state: str = "dead") -> Sequence[str]:
        """The ids of what `browse` would return."""


@runtime_checkable
class ClosesMore(Protocol):
    """Dead letters that have more to close than the connection to their broker."""

    def close(self) -> None: ...


@runtime_checkable
class SizesPages(Protocol):
    """A DLQ that is dealt with best in pages of another size than usual: where each change costs many questions to the server."""

    page: int


@runtime_checkable
class PurgesHistory(Protocol):
    """A DLQ that can delete all letters dealt with before in few requests, however many they are."""

    def purge_history(self) -> int:
        """Delete those that were replayed or discarded. Returns how many there were."""


@runtime_checkable
class ReadAsAWhole(Protocol):
    """A DLQ that can only be read as a whole."""

    def one_look(self, progress: Progress | None = None) -> AbstractContextManager[None]:
        """While this is open, every call works on one reading of the DLQ, and no other operator changes it."""


def one_look(letters: DeadLetters, progress: Progress | None = None) -> AbstractContextManager[None]:
    """What a command does inside reads the DLQ at most once."""
    return letters.one_look(progress) if isinstance(letters, ReadAsAWhole) else nullcontext()
