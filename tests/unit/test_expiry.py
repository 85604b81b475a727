"""Letters that are deleted because they are old: which filters may say so, and when it is done."""

import pytest

from unpoison import App
from unpoison.errors import ConfigError
from unpoison.store.choice import expiry
from unpoison.store.letters.expiry import EVERY, Expiry
from unpoison.store.letters.values import Changed


@pytest.mark.parametrize(
    "text",
    ["age>90d", "age>=1h -state:dead", "(age>30d or age>=400d) group:3f9a", "error:timeout age>7d or class:invalid age>1d"],
)
def test_a_filter_that_says_for_how_long_letters_are_kept_is_taken(text):
    assert str(expiry(text))


@pytest.mark.parametrize("text", ["-state:dead", "age<90d", "-age>90d", "age>90d or class:invalid", "attempts>3"])
def test_a_filter_that_deletes_new_letters_is_refused(text):
    with pytest.raises(ConfigError, match="would delete dead letters as soon as they come"):
        expiry(text)


def test_what_is_no_filter_is_refused_with_the_place_of_the_fault(tmp_path):
    url = f"sqlite:///{tmp_path}/shop.db"
    with pytest.raises(ConfigError, match="expire='age>' is no filter of dead letters"):
        App(url, collect=True, expire="age>")
    with pytest.raises(ConfigError, match="Add collect=True"):
        App(url, expire="age>90d")
    assert App(url, collect=True, expire="age>90d").settings.expire == "age>90d"


def test_it_is_looked_at_now_and_then_and_told(caplog):
    caplog.set_level("INFO", "unpoison")
    found, asked, clock = [7, 0], [], [1000.0]

    class Store:
        def expire(self, where, by):
            asked.append(str(where))
            return Changed(found.pop(0))

    old = Expiry("age>90d -state:dead", lambda: clock[0])
    assert [old.look(Store()), old.look(Store())] == [7, 0]
    clock[0] += EVERY
    assert old.look(Store()) == 0
    assert asked == ["age>90d not state:dead"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "Deleted 7 dead letters from the store: expired (age>90d not state:dead)."
    ]


def test_without_a_filter_nothing_is_deleted():
    assert Expiry(None).look(None) == 0
