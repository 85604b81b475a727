"""PostgreSQL learns early how many letters there are: without that it goes through all of them for each batch that comes."""

import psycopg
import pytest

from tests.unit.letter_stores import many
from unpoison.store.letters.sql_letters import letters_for
from unpoison.store.postgresql import ANALYZE_FIRST


def known_to_server(url):
    with psycopg.connect(url) as connection:
        return connection.execute("select reltuples from pg_class where relname = 'unpoison_letters'").fetchone()[0]


def test_the_server_looks_at_the_letters_once_there_are_many(postgresql):
    url = postgresql.fresh()
    store = letters_for(url)
    store.open()
    letters = many(ANALYZE_FIRST)
    store.put(letters[: ANALYZE_FIRST - 1])
    assert known_to_server(url) <= 0
    store.put(letters)
    assert known_to_server(url) == pytest.approx(ANALYZE_FIRST)
    store.close()
