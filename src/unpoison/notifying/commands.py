"""Which command does a notice tell a person to run? Each can be copied as it stands, with the app it is about."""

import shlex
from collections.abc import Sequence

from unpoison.control.changes import OperatorPause, PauseReason
from unpoison.control.evidence import Evidence
from unpoison.model.wording import one_line
from unpoison.notifying.notice import Step


class Commands:
    """For one app: named as `unpoison run` was told, or else by its broker's URL, in which a password has to be filled in."""

    def __init__(self, app: str, shown_url: str = "") -> None:
        self._app = app
        self._target = app or shown_url
        self._on = f"--app {_quoted(app)}" if app else f"--url {_quoted(shown_url)}"

    def source_of(self, name: str) -> str:
        """The source itself, where log lines name it with its app."""
        return name.removesuffix(f" ({self._app})")

    def of_group(self, name: str, fingerprint: str, letter_id: str) -> Sequence[Step]:
        group = f"--where {_quoted(f'group:{fingerprint}')} --source {self._source(name)} {self._on}"
        look = Step("Look at one", f"unpoison dlq show {_quoted(letter_id)} {self._on}") if letter_id else None
        listed = Step("Look at them", f"unpoison dlq ls {group}")
        again = Step("Once the cause is fixed, send them again", f"unpoison dlq replay {group}")
        return (look or listed, again)

    def of_letters(self, name: str = "") -> Sequence[Step]:
        source = f"--source {self._source(name)} " if name else ""
        return (Step("See what fails, by group", f"unpoison dlq groups {source}{self._on}"),)

    def of_pause(self, name: str, reason: PauseReason) -> Sequence[Step]:
        resume = f"unpoison resume {self._source(name)} {self._on}"
        match reason:
            case OperatorPause():
                return (Step("Once it may go on", resume),)
            case Evidence():
                return (*self.of_status(name), Step("If it works again and you do not want to wait", resume))
            case _:
                return (*self.of_letters(name), Step("To resume it without a new version", resume))

    def of_outage(self, name: str) -> Sequence[Step]:
        return (*self.of_status(name), Step("To try all that waits now", f"unpoison resume {self._source(name)} {self._on}"))

    def of_status(self, name: str = "") -> Sequence[Step]:
        source = f"{self._source(name)} " if name else ""
        return (Step("See what waits, and why", f"unpoison status {source}{self._on}"),)

    def of_broker(self) -> Sequence[Step]:
        return (Step("See whether the broker can be used from here", f"unpoison doctor {_quoted(self._target)}"),)

    def _source(self, name: str) -> str:
        return _quoted(self.source_of(name))


def _quoted(text: str) -> str:
    return shlex.quote(one_line(text))
