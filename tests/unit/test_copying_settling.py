"""Copies are confirmed before originals are let go, whatever fails in between, and nothing is done twice."""

import pytest

from unpoison.errors import BrokerUnavailable, OwnershipLost
from unpoison.model.message import UNTRIED, Counters, Delivery
from unpoison.port.broker import Dead, Kept, Settlement
from unpoison.port.copying.settling import ALL_LET_GO, Copies, LetGo, Receipt, Settler, Stored, handed_back
from unpoison.testing import given


class Server:
    """Holds originals and stores copies, as a queue would; `log` has what it did, in its order."""

    def __init__(self):
        self.queue, self.log = set(), []
        self.refuses, self.is_silent, self.forgets_answers = set(), False, set()
        self.settler = Settler(Copies("The server", self.store), lambda: OwnershipLost("Lost."), self.in_place)
        self.given_back = set()

    def delivery(self, id_, source="orders", holder=None, counters=UNTRIED):
        self.queue.add(id_)
        return Delivery(Receipt(holder or self, id_), source, id_, b"", counters=counters)

    def store(self, items):
        if self.is_silent:
            raise BrokerUnavailable("No answer.")
        names = [f"{'letter' if isinstance(item, Dead) else 'copy'} {item.delivery.id}" for item in items]
        refused = {number: "it is full." for number, item in enumerate(items) if item.delivery.id in self.refuses}
        self.log += [name for number, name in enumerate(names) if number not in refused]
        return Stored(refused, {number: f"id of {name}" for number, name in enumerate(names) if name.startswith("letter")})

    def held(self, receipts):
        return [receipt for receipt in receipts if receipt.handle in self.queue]

    def let_go(self, receipts):
        unknown = [receipt for receipt in receipts if receipt.handle in self.forgets_answers]
        gone = [receipt for receipt in receipts if receipt not in unknown]
        self.queue -= {receipt.handle for receipt in gone}
        self.log += [f"gone {receipt.handle}" for receipt in gone]
        return LetGo(unknown, error=BrokerUnavailable("No answer for some.")) if unknown else ALL_LET_GO

    def in_place(self, kept):
        found = [each.delivery.receipt for each in kept if each.delivery.id in self.given_back]
        self.queue -= {receipt.handle for receipt in found}
        self.log += [f"back {receipt.handle}" for receipt in found]
        return found


@pytest.fixture
def server():
    return Server()


def kept(delivery):
    return Kept(delivery, Counters(attempts=1), 5.0)


def dead(delivery):
    return Dead(delivery, given.letter_of(delivery))


def test_copies_are_stored_before_any_original_is_let_go(server):
    one, two, three = (server.delivery(id_) for id_ in "123")
    assert server.settler.settle(Settlement([one], [kept(two)], [dead(three)])) == ["id of letter 3"]
    assert server.log == ["copy 2", "letter 3", "gone 1", "gone 2", "gone 3"]


def test_without_an_answer_nothing_is_let_go(server):
    one, two = server.delivery("1"), server.delivery("2")
    server.is_silent = True
    with pytest.raises(BrokerUnavailable, match="No answer"):
        server.settler.settle(Settlement([one], [kept(two)]))
    assert server.log == []
    server.is_silent = False
    server.settler.settle(Settlement([one], [kept(two)]))
    assert server.log == ["copy 2", "gone 1", "gone 2"]


def test_what_could_be_stored_is_let_go_at_once_and_neither_stored_nor_let_go_again(server):
    one, two, three = (server.delivery(id_) for id_ in "123")
    settlement = Settlement([one], [kept(two)], [dead(three)])
    server.refuses = {"3"}
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="The server did not store 1 retry or dead letter: it is full"):
            server.settler.settle(settlement)
    assert server.log == ["copy 2", "gone 2"]
    server.refuses = set()
    assert server.settler.settle(settlement) == ["id of letter 3"]
    assert server.log == ["copy 2", "gone 2", "letter 3", "gone 1", "gone 3"]


def test_what_was_let_go_without_an_answer_for_the_rest_is_not_asked_for_again(server):
    one, two, three = (server.delivery(id_) for id_ in "123")
    settlement = Settlement([one, two], dead=[dead(three)])
    server.forgets_answers = {"2"}
    with pytest.raises(BrokerUnavailable, match="No answer for some"):
        server.settler.settle(settlement)
    server.forgets_answers = set()
    assert server.settler.settle(settlement) == ["id of letter 3"]
    assert server.log == ["letter 3", "gone 1", "gone 3", "gone 2"]


def test_if_one_holder_fails_the_others_are_let_go_once(server):
    class Silent(Server):
        def let_go(self, receipts):
            if self.is_silent:
                raise BrokerUnavailable("Silent.")
            return ALL_LET_GO

        def held(self, receipts):
            return receipts

    silent = Silent()
    silent.is_silent = True
    settlement = Settlement([server.delivery("1"), server.delivery("2", holder=silent), server.delivery("3")])
    with pytest.raises(BrokerUnavailable, match="Silent"):
        server.settler.settle(settlement)
    silent.is_silent = False
    server.settler.settle(settlement)
    assert server.log == ["gone 1", "gone 3"]


def test_what_belongs_to_another_is_left_alone_and_the_rest_is_settled(server):
    one, two, three, four = (server.delivery(id_) for id_ in "1234")
    server.queue -= {"1", "3"}
    with pytest.raises(OwnershipLost):
        server.settler.settle(Settlement([one, two], [kept(three)], [dead(four)]))
    assert server.log == ["letter 4", "gone 2", "gone 4"]


def test_what_turns_out_to_be_lost_when_it_is_let_go_is_told(server):
    one = server.delivery("1")
    server.let_go = lambda receipts: LetGo(lost=receipts)
    with pytest.raises(OwnershipLost):
        server.settler.settle(Settlement([one]))


def test_what_is_given_back_in_place_needs_no_copy_and_is_given_back_once(server):
    one, two = server.delivery("1"), server.delivery("2")
    settlement = Settlement(kept=[kept(one), kept(two)])
    server.given_back, server.refuses = {"1"}, {"2"}
    with pytest.raises(BrokerUnavailable):
        server.settler.settle(settlement)
    server.refuses = set()
    server.settler.settle(settlement)
    assert server.log == ["back 1", "copy 2", "gone 2"]


def test_another_settlement_in_between_does_not_make_the_first_one_forget(server):
    one, two, three = (server.delivery(id_) for id_ in "123")
    settlement = Settlement(kept=[kept(one), kept(two)])
    server.refuses = {"2"}
    with pytest.raises(BrokerUnavailable):
        server.settler.settle(settlement)
    server.settler.give_back([three])
    server.refuses = set()
    server.settler.settle(settlement)
    assert server.log == ["copy 1", "gone 1", "copy 3", "gone 3", "copy 2", "gone 2"]


def test_after_a_loss_nothing_is_remembered(server):
    one, two = server.delivery("1"), server.delivery("2")
    server.refuses = {"2"}
    with pytest.raises(BrokerUnavailable):
        server.settler.settle(Settlement(kept=[kept(one), kept(two)]))
    server.queue.clear()
    server.settler.forget_lost()
    with pytest.raises(OwnershipLost):
        server.settler.settle(Settlement(kept=[kept(one)]))
    assert server.log == ["copy 1", "gone 1"]


def test_giving_back_keeps_the_counters_and_says_nothing_of_what_is_lost(server):
    stored = []
    server.store = lambda items: stored.extend(items) or Stored()
    server.settler = Settler(Copies("The server", server.store), lambda: OwnershipLost("Lost."))
    one, two = server.delivery("1", counters=Counters(attempts=2)), server.delivery("2")
    server.queue.remove("2")
    server.settler.give_back([one, two])
    assert [(item.delivery.id, item.counters, item.after) for item in stored] == [("1", Counters(attempts=2), 0.0)]


def test_copies_can_be_told_apart_by_another_key():
    stored = []
    copies = Copies("Kafka", lambda items: stored.extend(items) or Stored(), key=lambda delivery: delivery.receipt)
    for _ in range(2):
        copies.store([kept(Delivery(("orders", 7), "orders", "1", b""))])
    assert len(stored) == 1
    copies.keep_only(lambda key: key[1] != 7)
    copies.store([kept(Delivery(("orders", 7), "orders", "1", b""))])
    assert len(stored) == 2


def test_only_what_was_not_started_is_handed_back(server):
    unstarted, failed, later = (server.delivery("1", source) for source in ("unstarted", "failed", "later"))
    settled = [Kept(unstarted, Counters()), Kept(failed, Counters(attempts=1)), Kept(later, Counters(), 3.0)]
    assert handed_back(settled) == {"unstarted"}


def test_a_copy_that_was_confirmed_is_not_stored_again_when_its_original_could_not_be_let_go(server):
    one, two = server.delivery("1"), server.delivery("2")
    settlement = Settlement(kept=[kept(one)], dead=[dead(two)])
    server.forgets_answers = {"1", "2"}
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="No answer for some"):
            server.settler.settle(settlement)
    server.forgets_answers = set()
    assert server.settler.settle(settlement) == ["id of letter 2"]
    assert server.log == ["copy 1", "letter 2", "gone 1", "gone 2"]


def test_what_is_done_and_belongs_to_another_by_now_is_told(server):
    one, two = server.delivery("1"), server.delivery("2")
    server.queue.remove("1")
    with pytest.raises(OwnershipLost):
        server.settler.settle(Settlement([one, two]))
    assert server.log == ["gone 2"]
