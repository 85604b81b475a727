import json
from collections import Counter

import msgspec
import pytest

from unpoison.cli.demo.shop import CATALOGUE, FEWEST, KILLER, KINDS, Order, message_id, number_of, traffic


@pytest.mark.parametrize("messages", [FEWEST, 60, 1000])
def test_the_same_seed_publishes_the_same_bytes(messages):
    assert traffic(messages, 7) == traffic(messages, 7)
    assert traffic(messages, 7).bodies != traffic(messages, 8).bodies


@pytest.mark.parametrize("messages", [FEWEST, 61, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_each_kind_of_poison_is_there_once_and_the_killer_comes_last(messages, seed):
    made = traffic(messages, seed)
    assert len(made.bodies) == messages
    assert Counter(kind.name for kind in made.poison.values()) == Counter(kind.name for kind in KINDS)
    assert made.poison[max(made.poison)] is KILLER
    assert min(made.poison) >= 1
    assert max(made.poison) < messages


def test_all_others_are_sound():
    made = traffic(200, 3)
    for number, body in enumerate(made.bodies, 1):
        if number not in made.poison:
            order = msgspec.json.decode(body, type=Order)
            assert order.id == number
            assert order.item in CATALOGUE
            assert order.customer
            assert order.address.isascii()


def test_poison_differs_from_a_sound_order_in_what_its_kind_says():
    made = traffic(200, 3)
    bodies = {kind.name: made.bodies[number - 1] for number, kind in made.poison.items()}
    with pytest.raises(json.JSONDecodeError):
        json.loads(bodies["truncated JSON"])
    with pytest.raises(UnicodeDecodeError):
        bodies["wrong encoding"].decode()
    assert "quantity" not in json.loads(bodies["missing field"])
    assert json.loads(bodies["integer overflow"])["quantity"] > 2**64


def test_a_message_id_leads_back_to_its_order():
    assert number_of(message_id(7)) == 7
    assert number_of(message_id(123_456)) == 123_456
