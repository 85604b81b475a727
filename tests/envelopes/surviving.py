"""What must hold for any batch of envelopes: the consumer survives, nothing is lost, sound neighbours are done."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from tests.envelopes.generated import Envelope
from unpoison.app import App
from unpoison.errors import Permanent
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing import Lab, given
from unpoison.testing.running import Journal, drained

SOUND = 5
_TOKEN = re.compile(rb"(?:done|dead|again|sound)-\d+-")

Send = Callable[[Sequence[Envelope]], None]


def names_of(bodies: Sequence[bytes]) -> Counter[bytes]:
    """By which messages are told apart; those whose body is nothing, or of another type, all have the same name."""
    return Counter(found[0] if (found := _TOKEN.search(body)) else b"" for body in bodies)


def survives(lab: Lab, batch: Sequence[Envelope], send: Send, *, is_whole: Callable[[int], bool] = lambda _: True) -> None:
    """`is_whole` says of which messages the body arrives as it was sent, and is not put together from other fields."""
    done: list[bytes] = []

    def handle(body: bytes, delivery: Delivery) -> None:
        if body.startswith(b"dead"):
            raise Permanent("as asked")
        if body.startswith(b"again"):
            raise ConnectionError("as asked")
        done.append(body)

    app = given.consumer(lab.app(), "orders", handle, max_attempts=2, backoff=Backoff.immediate())
    send(batch)
    app.publish_many("orders", [f"sound-{n}-".encode() for n in range(SOUND)])
    with Journal() as journal:
        drained(app)
    assert not journal.errors()
    letters = list(lab.dlq("orders").letters())
    assert all(letter.as_json() for letter in letters)
    ended = names_of([*done, *(letter.body for letter in letters)])
    sent = [envelope.body(number) for number, envelope in enumerate(batch)]
    expected = names_of([body if isinstance(body, bytes) else b"" for body in sent])
    assert ended == expected + Counter({b"sound-%d-" % n: 1 for n in range(SOUND)})
    assert {b"sound-%d-" % n for n in range(SOUND)} <= set(done)
    arrived = {*done, *(letter.body for letter in letters)}
    assert [
        body for number, body in enumerate(sent) if isinstance(body, bytes) and is_whole(number) and body not in arrived
    ] == []
    replayed_is_done(lab, app, len(letters))


def replayed_is_done(lab: Lab, app: App, count: int) -> None:
    """An operator can send all of it again, and then it is handled."""
    app.close()
    again: list[bytes] = []

    def handle(body: bytes) -> None:
        again.append(body)

    app = given.consumer(lab.app(), "orders", handle)
    assert lab.dlq("orders").replay_all().count == count
    drained(app)
    left = list(lab.dlq("orders").letters())
    assert len(again) + len(left) == count
    assert all(letter.rule.startswith("invalid: unreadable") for letter in left)
    assert lab.dlq("orders").purge().purged == len(left)


def can_be_looked_at(lab: Lab, count: int) -> None:
    """What another program put into the DLQ: it is shown as far as it goes, and can be sent again or given up. Those that claim
    to be the same letter are shown once."""
    letters = list(lab.dlq("orders").letters())
    assert count // 2 < len(letters) <= count
    assert all(letter.as_json() for letter in letters)
    first, *_ = letters
    assert lab.dlq("orders").get(first.id).id == first.id
    lab.dlq("orders").discard(first.id)
    replayed: list[bytes] = []

    def handle(body: bytes) -> None:
        replayed.append(body)

    app = given.consumer(lab.app(), "orders", handle)
    assert lab.dlq("orders").replay_all().count == len(letters) - 1
    drained(app)
