"""PostgreSQL as a broker."""
