"""Does hardly any message succeed beside those that fail on a dependency which is down?

Asked of new messages only, since retries are no sample of what comes. So many of them must fail in a row that it is no chance: of
messages of which one in ten does not need the dependency, sixty in a row all need it once in 550 times. The more have succeeded
already, the more rows there were, so the longer a row must be. So a source of which a tenth goes on is paused in one outage of
400 at most, however much traffic it has and however long the outage lasts.
"""

ROW = 6
"""Times the messages that make an outage: so many in a row show that hardly any other succeeds."""
LONGER = 1.5
"""The same, by which a row must be longer each time that twice as many others have succeeded."""
MOST_MISTAKES = 8
HARDLY_ANY_FOR = 1.0
"""Seconds that a row must last too: behind a burst of messages that need what is down, others may stand."""


class Beside:
    """What ends beside the failures on one dependency. `messages` make an outage; nothing else has succeeded from `since` on."""

    def __init__(self, messages: int, since: float) -> None:
        self._messages, self._since = messages, since
        self._in_a_row = self._succeeded = self._mistakes = self._excused = 0

    def begin_with(self, in_a_row: int) -> None:
        """So many have failed in a row already."""
        self._in_a_row = in_a_row

    def ended(self, good: int, failed: int, now: float) -> None:
        """In one batch, so many that do not need the dependency have succeeded, and so many have failed. To be told before those.
        In which order they ended is not known, so the successes are taken to lie evenly among the failures."""
        self._excused = failed - failed // (good + 1) if good else 0
        if good:
            self._succeeded += good
            self._in_a_row, self._since = 0, now

    def failed(self, *, is_first: bool) -> None:
        """A message has failed on the dependency. `is_first`: it had never failed before."""
        if self._excused:
            self._excused -= 1
        else:
            self._in_a_row += is_first

    def was_mistaken(self, now: float) -> None:
        """The source was paused, and then others succeeded: the next row must be longer."""
        self._mistakes = min(MOST_MISTAKES, self._mistakes + 1)
        self._in_a_row, self._since = 0, now

    def hardly_any_succeed(self, now: float) -> bool:
        row = ROW * (1 + self._mistakes) + LONGER * self._succeeded.bit_length()
        return self._in_a_row >= row * self._messages and now - self._since >= HARDLY_ANY_FOR
