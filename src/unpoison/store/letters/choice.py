"""The part of a store that keeps dead letters, for a URL."""

from unpoison.store.choice import database_for
from unpoison.store.letters.port import LetterStore
from unpoison.store.letters.sql_letters import SQLLetterStore


def letters_for(url: str) -> LetterStore:
    """Not yet opened."""
    return SQLLetterStore(database_for(url, is_queue=False))
