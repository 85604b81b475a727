"""What can be done with dead letters from the command line?"""

import gc

from unpoison.cli.lazy import LazyGroup

COLLECT_AFTER = 100_000


def _collect_rarely() -> None:
    """A hundred thousand letters are a million objects, and none of them is part of a cycle: the garbage collector would look at
    them again and again, for a fifth of the whole time."""
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


command = LazyGroup(
    {
        "ls": ("unpoison.cli.dlq.ls", "List dead letters, oldest first."),
        "count": ("unpoison.cli.dlq.count", "Count dead letters by source and state."),
        "show": ("unpoison.cli.dlq.show", "Show everything known about one dead letter."),
        "replay": ("unpoison.cli.dlq.replay", "Send dead letters to their source again."),
        "discard": ("unpoison.cli.dlq.discard", "Give dead letters up; they stay visible as discarded."),
        "purge": ("unpoison.cli.dlq.purge", "Delete all dead letters of a source for good."),
    },
    name="dlq",
    callback=_collect_rarely,
    help="Look at dead letters, send them again, or give them up.\n\n"
    "Each command takes --app module:app, which knows the broker and the sources, or --url URL. Those that change a whole DLQ "
    "need --source NAME where there are several.",
    epilog="\b\nExamples:\n"
    "  unpoison dlq ls --app shop:app\n"
    "  unpoison dlq show orders-12 --app shop:app\n"
    "  unpoison dlq replay --all --url sqlite:///shop.db --source orders",
)
