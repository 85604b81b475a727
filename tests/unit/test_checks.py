from unpoison.port.broker import Finding
from unpoison.port.findings import Check, examine, names_of

CHECKS = (
    Check("small", lambda queue: queue["size"] < 10, "{of[name]!r} takes {of[size]:,} bytes.", "edit {of[name]}", loses=True),
    Check("slow", lambda queue: queue["wait"] > 5, "{of[name]!r} waits {of[wait]:g} s.", "edit {of[name]} --wait=1", stops=True),
)


def test_a_table_of_checks_tells_what_is_wrong_with_the_values_in_it():
    assert examine(CHECKS, {"name": "orders", "size": 9, "wait": 2.0}) == [
        Finding("small", "'orders' takes 9 bytes.", "edit orders", loses=True)
    ]
    assert examine(CHECKS, {"name": "orders", "size": 10, "wait": 7.5}) == [
        Finding("slow", "'orders' waits 7.5 s.", "edit orders --wait=1", stops=True)
    ]


def test_the_names_of_all_checks_are_known_each_once():
    assert names_of(CHECKS, CHECKS[:1]) == ("small", "slow")
