"""What can be done with dead letters from the command line?"""

from unpoison.cli.lazy import LazyGroup

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
    help="Look at dead letters, send them again, or give them up.\n\n"
    "Each command takes --app module:app, which knows the broker and the sources, or --url URL. Those that change a whole DLQ "
    "need --source NAME where there are several.",
    epilog="\b\nExamples:\n"
    "  unpoison dlq ls --app shop:app\n"
    "  unpoison dlq show orders-12 --app shop:app\n"
    "  unpoison dlq replay --all --url sqlite:///shop.db --source orders",
)
