"""What the brokers with SQL tables share: numbers of sources, ids of letters, versions of tables, one transaction to publish."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from unpoison.errors import BrokerUnavailable, ConfigError, Refusal
from unpoison.model.message import UNTRIED, Outgoing
from unpoison.port.broker import STORED, Published, Refused, not_sent
from unpoison.port.serialization import counters_text, read_counters
from unpoison.port.sql import (
    LetterIds,
    SourceNumbers,
    no_source,
    publish,
    returned_counters,
    split_by_delay,
)
from unpoison.port.table_versions import check_version, migrate, migration_script

ORDERS = Outgoing("1", "orders", b"x")


def numbers(table, *, faster=()):
    """Numbers from a table in memory. Another process creates the sources in `faster` at the same moment."""

    def create(source):
        table[source] = len(table) + 1
        return source not in faster

    return SourceNumbers(table.get, create)


def test_a_source_is_looked_up_once_and_created_when_it_is_missing():
    known = numbers({"orders": 7})
    assert (known["orders"], known["mails"], known["mails"]) == (7, 2, 2)
    assert known.created == ["mails"]


def test_a_source_that_another_process_creates_at_the_same_moment_is_not_reported_as_created():
    known = numbers({}, faster=["orders"])
    assert known["orders"] == 1
    assert known.created == []


def test_a_source_that_is_removed_while_it_is_created_is_an_outage():
    with pytest.raises(BrokerUnavailable, match="'orders' was removed"):
        SourceNumbers(lambda _: None, lambda _: True)["orders"]


def test_a_missing_source_names_the_known_ones_and_the_statement_that_creates_it():
    text = str(no_source("odrers", "shop.db", ["orders"], "insert …"))
    assert text == (
        "Source 'odrers' does not exist in 'shop.db', and create=False forbids creating it. Sources there: 'orders'. "
        "Check the name; to create it, run there:\ninsert …"
    )


def test_what_another_process_has_migrated_since_is_not_migrated_again():
    versions, done = iter([0, 1]), []
    run = SimpleNamespace(execute=done.append)
    migrate(
        run,
        lambda *_: next(versions),
        nullcontext,
        ("create table a (b)", "create table c (d)"),
        "shop.db",
        create=True,
    )
    assert "create table a (b)" not in done
    assert "create table c (d)" in done


def test_tables_that_may_not_be_created_are_refused_with_what_to_do():
    check_version(1, 2, "shop.db", create=True)
    check_version(2, 2, "shop.db", create=False)
    with pytest.raises(
        ConfigError, match=r"'shop.db' has no tables of unpoison, .* needs version 2, .* migrate --sql URL\nThen$"
    ):
        check_version(0, 2, "shop.db", create=False, more="\nThen")
    with pytest.raises(ConfigError, match=r"'shop.db' has unpoison tables of version 1, this unpoison needs version 2"):
        check_version(1, 2, "shop.db", create=False)


@pytest.mark.parametrize("create", [True, False])
def test_tables_of_a_newer_version_are_refused(create):
    with pytest.raises(ConfigError, match=r"written by a newer unpoison \(tables of version 3, this one knows 2\)"):
        check_version(3, 2, "shop.db", create=create)


def test_the_script_for_own_migrations_ends_every_statement_and_notes_the_version():
    assert migration_script(("create table a;\n", "create table b"), since=0).splitlines() == [
        "create table if not exists unpoison_version (version integer not null);",
        "create table a;",
        "create table b;",
        "delete from unpoison_version;",
        "insert into unpoison_version values (2);",
    ]
    assert "create table a" not in migration_script(("create table a", "create table b"), since=1)


class Database:
    """Records what is written; its transaction fails while `when` it is told to."""

    def __init__(self, when=None):
        self.when, self.written, self.failures = when, [], []

    @contextmanager
    def transaction(self):
        yield self
        if self.when == "commit":
            raise BrokerUnavailable("gone")

    def write(self, run, number, batch):
        if self.when == "write":
            raise BrokerUnavailable("gone")
        self.written.append((number, [message.id for message in batch]))

    def failed(self, messages, error, *, committing):
        self.failures.append(committing)
        return Published(unknown=dict.fromkeys(range(len(messages)), str(error)))

    def publish(self, messages, known):
        return publish(messages, known, self.transaction, self.write, self.failed)


def test_publish_writes_source_by_source_and_reports_new_sources_once():
    database, known = Database(), numbers({"orders": 7})
    messages = [ORDERS, Outgoing("2", "mails", b"x"), Outgoing("3", "orders", b"x")]
    assert list(database.publish(messages, known).created) == ["mails"]
    assert database.written == [(7, ["1", "3"]), (2, ["2"])]
    assert database.publish(messages, known) is STORED


@pytest.mark.parametrize(("when", "committing"), [("write", False), ("commit", True)])
def test_publish_tells_a_failed_commit_from_a_failed_write(when, committing):
    database = Database(when)
    assert database.publish([ORDERS], numbers({"orders": 7})).unknown == {0: "gone"}
    assert database.failures == [committing]


def test_publish_stores_nothing_if_one_source_cannot_be_had():
    def refuse(source):
        raise no_source(source, "shop.db", ["orders"], "insert …")

    database, error = Database(), no_source("odrers", "shop.db", ["orders"], "insert …")
    refused = database.publish([ORDERS, Outgoing("2", "odrers", b"x")], SourceNumbers({"orders": 7}.get, refuse)).refused
    assert refused[1][:2] == not_sent(error)[:2] == Refused(Refusal.NO_SUCH_SOURCE, str(error))[:2]
    assert refused[0].refusal is Refusal.NOT_SENT
    assert database.written == []


def test_messages_are_split_by_delay_in_their_order():
    later = Outgoing("2", "orders", b"x", delay=1.0)
    assert split_by_delay([ORDERS, later]) == ([ORDERS], [later])
    messages = [ORDERS]
    assert split_by_delay(messages)[0] is messages  # nearly always nothing is delayed: nothing is copied


def test_counters_of_a_vanished_consumer_are_counted_as_returned_and_unreadable_ones_kept():
    assert read_counters(returned_counters(None)) == UNTRIED.returned()
    assert read_counters(returned_counters(counters_text(UNTRIED.returned()))) == UNTRIED.returned().returned()
    assert returned_counters("no JSON") == "no JSON"


@pytest.mark.parametrize("letter_id", ["orders-0", "orders-01", "orders-x", "orders-", "orders", "mails-7", f"orders-{10**18}"])
def test_an_id_that_no_letter_of_the_source_has_is_number_zero(letter_id):
    assert LetterIds("orders").number(letter_id) == 0


def test_letter_ids_become_numbers_and_back():
    ids = LetterIds("big-orders")
    assert ids.of(7) == "big-orders-7"
    assert ids.numbers(["big-orders-9", "big-orders-7", "orders-3", "big-orders-9"]) == [7, 9]
    assert ids.among(["big-orders-9", "orders-9", "big-orders-7"], {9}) == ["big-orders-9"]
    assert ids.between("", "") == (0, 2**62)
    assert ids.between("big-orders-7", "big-orders-9") == (7, 9)
    assert ids.between("", "orders-9") == (0, 0)  # up to a letter of another source: nothing
