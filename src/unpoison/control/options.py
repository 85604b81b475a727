"""Which state machines a source has, and how they are set."""

import msgspec

from unpoison.errors import ConfigError


class Breaker(msgspec.Struct, frozen=True):
    """What counts as an outage: `messages` different messages that failed on one dependency within `within` seconds. While it
    lasts, a message is tried after `first_probe` seconds, and then at intervals that double up to `longest_probe`."""

    messages: int = 10
    within: float = 30.0
    first_probe: float = 1.0
    longest_probe: float = 15.0

    def __post_init__(self) -> None:
        if self.messages < 2:
            raise ConfigError(
                f"Breaker messages must be 2 or more, got {self.messages!r}: one message that fails is poison, not an outage. "
                f"To turn the breaker off use breaker=None."
            )
        if not 0 < self.within < float("inf"):
            raise ConfigError(f"Breaker within must be a number of seconds above 0, got {self.within!r}.")
        if not 0 < self.first_probe <= self.longest_probe < float("inf"):
            given = f"{self.first_probe!r} and {self.longest_probe!r}"
            raise ConfigError(f"Breaker first_probe must be above 0 and at most longest_probe, got {given}.")


class Admission(msgspec.Struct, frozen=True):
    """How many dead letters are too many: more than `share` of the messages that ended within `within` seconds, or within the
    last tenth of that time, and more than `at_least` of them."""

    share: float = 0.2
    at_least: int = 50
    within: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:  # of more than all messages nothing ever is
            raise ConfigError(
                f"Admission share must be above 0 and below 1, got {self.share!r}. A fifth is 0.2; to turn it off use "
                f"admission=None."
            )
        if self.at_least < 1:
            raise ConfigError(f"Admission at_least must be 1 or more, got {self.at_least!r}. To turn it off use admission=None.")
        if not 0 < self.within < float("inf"):
            raise ConfigError(f"Admission within must be a number of seconds above 0, got {self.within!r}.")


class ControlOptions(msgspec.Struct, frozen=True):
    """Which state machines a source has; None turns one off. `depends_on` names what every message of it needs."""

    breaker: Breaker | None = Breaker()
    budget: float | None = 0.2
    admission: Admission | None = Admission()
    depends_on: str | None = None


DEFAULT_CONTROL = ControlOptions()
NO_CONTROL = ControlOptions(None, None, None)
