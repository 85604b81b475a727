"""Which state machines a source has, and how they are set."""

import msgspec

from unpoison.control.admission import Admission
from unpoison.control.breaker import Breaker


class ControlOptions(msgspec.Struct, frozen=True):
    """Which state machines a source has; None turns one off. `depends_on` names what every message of it needs."""

    breaker: Breaker | None = Breaker()
    budget: float | None = 0.2
    admission: Admission | None = Admission()
    depends_on: str | None = None


DEFAULT_CONTROL = ControlOptions()
NO_CONTROL = ControlOptions(None, None, None)
