"""What does `unpoison run` say and do on SQS, as a process of its own?"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.contract.sqs_lab import SHORT_VISIBILITY, SQSLab
from tests.e2e.command_line import environment, unpoison
from unpoison.testing.isolation.diary import wait_until

APP = """
from pathlib import Path
from unpoison import App

app = App({url!r})

@app.consumer({source!r}, max_attempts=2, concurrency=2, timeout=None)
def handle(body: bytes) -> None:
    with Path("starts").open("a") as starts:
        starts.write(body.decode() + "\\n")
    while body == b"slow":
        pass
"""
SHORT_DAY = """
import sys
from unpoison.brokers.sqs import subscription
from unpoison.cli.main import main

subscription.LONGEST_HELD = subscription.MARGIN + 3
sys.exit(main())
"""
"""The command, where twelve hours are three seconds."""


@pytest.fixture
def quick(tmp_path, elasticmq):
    """What nobody renews comes again soon."""
    with SQSLab(elasticmq, tmp_path, visibility=SHORT_VISIBILITY) as lab:
        yield lab


def app_file(folder: Path, url: str, source: str) -> None:
    (folder / "shop.py").write_text(APP.format(url=url, source=source))


def test_that_retries_may_be_overtaken_in_a_fifo_queue_is_said_at_the_start(lab, tmp_path):
    for source, times in (("orders.fifo", 1), ("orders", 0)):
        app_file(tmp_path, lab.url, source)
        ended = unpoison("run", "shop:app", "--until-empty", cwd=tmp_path)
        assert ended.code == 0
        assert " ".join(ended.err.split()).count("those behind a message which fails do not wait for it") == times


def test_a_handler_that_is_at_work_for_twelve_hours_is_ended_and_that_is_said_until_its_message_is_a_dead_letter(quick, tmp_path):
    app_file(tmp_path, quick.url, "orders")
    assert unpoison("publish", quick.url, "orders", "--raw", "slow", "quick", cwd=tmp_path).code == 0
    starts, log = tmp_path / "starts", tmp_path / "log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", SHORT_DAY, "run", "shop:app"], cwd=tmp_path, env=environment(), stderr=said
        )
        try:
            wait_until(lambda: quick.dlq("orders").count() == 1, log.read_text, 90)
        finally:
            process.kill()
            process.wait()
    assert "twelve hours, and SQS lets nobody hold a message for longer. Its results are dropped" in " ".join(
        log.read_text().split()
    )
    counted = Counter(starts.read_text().split())
    assert (counted["quick"], 2 <= counted["slow"] <= 4) == (1, True)
