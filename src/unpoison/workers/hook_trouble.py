"""Logs what goes wrong with `on_failure`, each kind once for a source: a hook that fails does so with every failure."""

import logging

from unpoison.model.events import fields

log = logging.getLogger("unpoison")


class HookTrouble:
    """What has been told about the hooks for failures of one source, which log lines call `name`."""

    def __init__(self, source: str, name: str = "") -> None:
        self._source, self._name = source, name or source
        self._told: set[str] = set()

    def tell(self, kind: str, problem: str, traceback: str, message_id: str) -> None:
        if kind in self._told:
            return
        self._told.add(kind)
        log.error(
            "on_failure of %r %s. Messages are not affected. This is logged once for each kind of problem.",
            self._name,
            problem.rstrip("."),
            extra=fields("hook-failed", hook="on_failure", source=self._source, message_id=message_id, hook_traceback=traceback),
        )
