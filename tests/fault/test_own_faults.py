"""A fault of our own, with real workers: the consumer ends and says over what, and after some starts the culprit is given up."""

import subprocess
import sys

from unpoison.app import App

SHOP = """
from unpoison import App, Permanent
from unpoison.flow.settling import SettlementBuilder

app = App("sqlite:///shop.db")
sound = SettlementBuilder._event


def broken(builder, delivery, *facts):
    if delivery.id == "culprit":
        raise ZeroDivisionError("a fault of our own")
    return sound(builder, delivery, *facts)


@app.consumer("orders", max_attempts=2, concurrency=2)
def handle(body: str) -> None:
    if body == "culprit":
        raise Permanent("judged, and that fails")
    with open("done.txt", "a") as done:
        done.write(body + "\\n")


if __name__ == "__main__":
    SettlementBuilder._event = broken
    app.run(until_empty=True)
"""


def test_repeated_starts_that_end_the_same_way_convict_one_message(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    app = App(f"sqlite:///{tmp_path}/shop.db")
    app.publish_many("orders", [f"order {n}" for n in range(3)])
    app.publish("orders", "culprit", id="culprit")
    app.publish_many("orders", [f"order {n}" for n in range(3, 6)])
    ends = []
    while not ends or ends[-1].returncode:
        assert len(ends) < 6, "it goes on and on"
        command = [sys.executable, "shop.py"]
        ends.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60))
    assert len(ends) > 1
    assert "The consumer of 'orders' failed unexpectedly, ZeroDivisionError: a fault of our own" in ends[0].stderr
    assert "'culprit'" in ends[0].stderr
    (letter,) = app.dlq("orders").peek()
    assert (letter.message.id, letter.body, letter.classification) == ("culprit", b"culprit", "lost")
    assert set((tmp_path / "done.txt").read_text().split("\n")) == {"", *(f"order {n}" for n in range(6))}
    app.close()
