"""What does the handler of every peer do, and which messages does it get?

Every environment runs this, so it needs nothing but the standard library.
"""

import json
import mmap
import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

URL = os.environ.get("PEER_URL", "")
SETTINGS: dict[str, Any] = json.loads(os.environ.get("PEER_SETTINGS", "{}"))
FOLDER = Path(os.environ.get("PEER_FOLDER", "."))

SIZE = 256
HEALTHY = 5
GARBAGE = b"\xff\xfe\x00 no message at all \x80"

Order = dict[str, Any]


def order(number: int) -> Order:
    """The same order of 256 bytes as JSON that all other benchmarks use."""
    made: Order = {
        "id": number,
        "customer": {"id": f"customer-{number % 1000}", "country": "PT"},
        "total": 129.5,
        "currency": "EUR",
        "items": [{"sku": "A-1001", "count": 2, "price": 39.75}, {"sku": "B-2002", "count": 1, "price": 50.0}],
        "note": "",
    }
    made["note"] = "x" * (SIZE - len(json.dumps(made, separators=(",", ":"))))
    return made


class Orders(Sequence[Order]):
    """So many orders, made when they are asked for: a million of them at once would not fit."""

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: Any) -> Any:
        numbers = self._numbers[at]
        return order(numbers) if isinstance(numbers, int) else [order(number) for number in numbers]


def kill_test() -> list[Order]:
    """One that kills whoever handles it, and five healthy ones behind it."""
    return [{"name": "poison"}, *({"name": f"healthy-{number}"} for number in range(1, HEALTHY + 1))]


def handle(order: Order) -> None:
    """Looks one value up and says that this order was seen; in a kill test, does what the name says."""
    if "name" in order:
        _act(order["name"])
    else:
        order["total"]
        _seen()[order["id"]] += 1


_maps: list[mmap.mmap] = []


def _seen() -> mmap.mmap:
    """A byte for each order, shared with whoever measures: adding to it costs next to nothing, whatever process does it."""
    if not _maps:
        with (FOLDER / "seen").open("r+b") as file:
            _maps.append(mmap.mmap(file.fileno(), 0))
    return _maps[0]


def _act(name: str) -> None:
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(f"{name}\n")
    if name == "poison":
        _kill_the_whole_worker()


def _kill_the_whole_worker() -> None:
    """As the kernel does with a container that is out of memory: every process of it, at once, this one last."""
    main = int((FOLDER / "pid").read_text())
    for pid in [main, *_descendants(main)]:
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


def chunks(orders: Sequence[Order], size: int = 1_000) -> Iterable[Sequence[Order]]:
    return (orders[at : at + size] for at in range(0, len(orders), size))
