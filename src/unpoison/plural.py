"""How is a count said? "1 message", "2 messages", "12,345 dead letters"."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count with its noun. `plural` only where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
