"""What does the consumer process of a promise do? What `unpoison run` does, with its log as JSON lines.

python -m unpoison.testing.isolation.consumer_main [--until-empty]
"""

import logging
import os
import sys

import msgspec

from unpoison.errors import UnpoisonError
from unpoison.flow.run import Run
from unpoison.flow.runnable import RunnableApp
from unpoison.testing.isolation import plan


class LogLine(msgspec.Struct, frozen=True):
    """One line of a consumer's log."""

    level: str
    event: str
    message: str
    consumer: int


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = LogLine(record.levelname, getattr(record, "event", ""), record.getMessage(), os.getpid())
        os.write(2, msgspec.json.encode(line) + b"\n")


def main() -> int:
    logging.basicConfig(level=logging.DEBUG, handlers=[_Lines()])
    scene = plan.current()
    for _ in range(scene.also.get("descriptors", 0)):
        os.open(os.devnull, os.O_RDONLY)
    try:
        app = RunnableApp.from_reference(scene.app, dict, scene.also.get("start_timeout", 60.0))
        Run([app], is_dedicated=True).serve(until_empty="--until-empty" in sys.argv)
    except UnpoisonError as error:
        logging.getLogger("unpoison").critical("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
