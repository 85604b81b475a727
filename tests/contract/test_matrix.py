"""The table from which the contract's tests are made."""

from tests.contract import matrix
from unpoison.brokers import ADAPTERS


def test_every_promise_is_tried_every_day_somewhere_and_in_the_long_run_on_a_server():
    everyday = matrix.NONE.union(*(row.everyday for row in matrix.ROWS))
    on_a_server = matrix.NONE.union(*(row.everyday | row.long for row in matrix.ROWS if row.servers))
    assert everyday == on_a_server == matrix.EVERY


def test_every_broker_has_a_row_and_no_row_a_promise_that_is_not_there():
    brokers = {row.name.split()[0] for row in matrix.ROWS}
    ours = {adapter.module.split(".")[2] for adapter in ADAPTERS.values() if adapter.module.startswith("unpoison.")}
    assert brokers - {"folder"} == ours, "folder is the adapter that CONTRIBUTING.md makes"
    for row in matrix.ROWS:
        assert row.everyday | row.long <= matrix.EVERY


def test_the_name_of_a_row_can_be_read_from_the_name_of_a_test():
    """By it the tests are spread over processes and shards: tests/shards.py."""
    assert len(matrix.ROW) == len(matrix.ROWS)
    assert not [row.name for row in matrix.ROWS if set(row.name) & set("-[]")]


def test_the_table_says_what_runs_where():
    lines = matrix.table()
    assert lines[0].split()[:3] == ["topic", "promises", "sqlite"]
    cells = {line.split()[0]: line for line in filter(None, lines)}
    assert len(cells["killing"].split()) == 2 + len(matrix.ROWS)
    assert cells["killing"].split()[2:6] == ["day", "-", "day", "long"]
    assert "1d 5l" in cells["isolation_kills"], "RabbitMQ 4: one every day, the others in a long run"
