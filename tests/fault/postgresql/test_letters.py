"""What do dead letters in PostgreSQL cost the server?

Counted in rows that it reads, not in seconds.
"""

import pytest

from unpoison.brokers.postgresql.broker import PostgreSQLBroker
from unpoison.brokers.postgresql.deadletters import PostgreSQLDeadLetters

LETTERS, FEW = 3_000, 10
MOST_READS = 5
"""Times that each letter may be read when it is dealt with."""

WRITE = """
insert into unpoison_dead (source, state, replays, fingerprint, id, body, record)
select %s, 'dead', 0, '', 'message', '', '{}' from generate_series(1, %s)
"""
ANALYZED = {
    "never": lambda run, fill: fill(),
    "while there were none": lambda run, fill: (run.execute("vacuum analyze unpoison_dead"), fill()),
    "with all of them": lambda run, fill: (fill(), run.execute("vacuum analyze unpoison_dead")),
}
WORK = {
    "replay": PostgreSQLDeadLetters.replay,
    "discard": lambda letters, ids: letters.remove(ids, keep_as="discarded"),
    "delete": PostgreSQLDeadLetters.remove,
}


@pytest.fixture
def letters(postgresql):
    broker = PostgreSQLBroker(postgresql.fresh())
    broker.open(["orders"])
    yield PostgreSQLDeadLetters(broker, "orders")
    broker.close()


def read_so_far(letters):
    with letters.broker.connection.use() as run:
        run.execute("select pg_stat_force_next_flush()")
        query = "select idx_tup_fetch + seq_tup_read from pg_stat_user_tables where relname = 'unpoison_dead'"
        return run.execute(query).fetchone()[0]


@pytest.mark.parametrize("analyzed", ANALYZED)
def test_a_few_letters_of_very_many_are_dealt_with_without_reading_the_others(letters, analyzed):
    with letters.broker.connection.use() as run:
        run.execute("alter table unpoison_dead set (autovacuum_enabled = off)")
        number = letters.broker.numbers["orders"]
        ANALYZED[analyzed](run, lambda: run.execute(WRITE, (number, LETTERS)))
    for name, work in WORK.items():
        ids = letters.ids(limit=FEW)
        before = read_so_far(letters)
        assert work(letters, ids) == ids
        assert read_so_far(letters) - before <= FEW * MOST_READS, name
    assert letters.count() == LETTERS - len(WORK) * FEW


def test_letters_that_another_operator_has_dealt_with_are_left_alone(letters):
    with letters.broker.connection.use() as run:
        run.execute(WRITE, (letters.broker.numbers["orders"], FEW))
    ids = letters.ids()
    assert letters.replay(ids[:4]) == ids[:4]
    assert letters.remove(ids[4:6]) == ids[4:6]
    assert letters.replay(ids[:6]) == []
    assert letters.remove(ids[:6]) == []
    assert letters.replay(ids) == ids[6:]
    with letters.broker.connection.use() as run:
        assert run.execute("select count(*) from unpoison_waiting").fetchone() == (8,)
