"""PostgreSQL as a broker. `settle` ends a message with the handler's own transaction."""

from unpoison.brokers.postgresql.transaction import settle

__all__ = ["settle"]
