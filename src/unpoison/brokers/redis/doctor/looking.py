"""How does the doctor ask? One question at a time, and it hears when it may not."""

from typing import Any

import redis

from unpoison.brokers.redis.connection import Link
from unpoison.brokers.redis.explaining import word


class NotAllowed(Exception):
    """This user may not ask that, or the server does not have the command (as where it is rented)."""

    def __init__(self, error: Exception, command: str, user: str) -> None:
        self.command, self.user = command, user
        super().__init__(str(error))


class Look:
    """A look at the server that has a key."""

    def __init__(self, link: Link, key: str) -> None:
        self.link, self.key = link, key

    @property
    def shown(self) -> str:
        return self.link.finder.address.shown

    @property
    def group(self) -> str:
        return self.link.finder.address.group

    def ask(self, *command: Any) -> Any:
        answer = self.link.try_all(self.key, command)[0]
        if isinstance(answer, redis.ResponseError):
            if word(answer) == "NOPERM" or "unknown command" in str(answer):
                user = self.link.finder.address.options.get("username") or "default"
                raise NotAllowed(answer, "|".join(map(str, command[:2])).lower() if command[0] == "CONFIG" else command[0], user)
            raise answer
        return answer

    def info(self, section: str) -> dict[str, str]:
        told = self.ask("INFO", section).decode()
        return dict(line.split(":", 1) for line in told.splitlines() if ":" in line)

    def table(self, *command: Any) -> list[dict[str, Any]]:
        """The answer of a command that tells names and values in turn, for one thing or for several."""
        rows = self.ask(*command)
        flat = rows if rows and isinstance(rows[0], list) else [rows]
        return [{name.decode(): value for name, value in zip(row[::2], row[1::2], strict=True)} for row in flat if row]

    def kind(self, key: str) -> str:
        return str(self.ask("TYPE", key).decode())
