"""unpoison uses what pika and nats-py keep to themselves, so pyproject.toml bounds them. Does their newest release work too?

If it does and lies above the bound, the bound can be raised.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers import ServerMissing
from tests.servers_plugin import skip_or_fail

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
ROWS = {"pika": "rabbitmq 3.10 quorum", "nats-py": "nats"}
PROMISES = (
    "test_id_key_and_headers_arrive_as_they_were_sent",
    "test_a_waiting_consumer_is_told_when_a_message_arrives",
    "test_a_waiting_consumer_is_told_when_a_killed_one_left_messages",
    "test_a_retry_waits_while_others_go_on",
    "test_a_replayed_message_begins_with_its_first_attempt",
    "test_what_got_no_answer_is_unknown_and_can_be_sent_again_under_its_id",
    "test_a_consumer_that_lost_its_messages_says_so_drops_its_results_and_goes_on",
    "test_while_dead_letters_cannot_be_stored_the_source_stands_still_and_then_goes_on",
)


@pytest.mark.parametrize(("client", "row"), ROWS.items(), ids=ROWS)
def test_the_newest_release_of_a_client_whose_internals_are_used_keeps_the_promises(tmp_path, client, row):
    folder = tmp_path / "newest"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
        "--target",
        folder,
        client,
    ]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    if installed.returncode:
        why = installed.stderr.strip().splitlines()[-1:]
        skip_or_fail(f"newest {client}", ServerMissing(f"pip cannot install it, so nobody knows whether it works: {why}"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
    used = f"import importlib.metadata as m; print(m.version({client!r}), m.distribution({client!r}).locate_file(''))"
    version, _, where = _run(environment, "-c", used).stdout.strip().partition(" ")
    assert where == str(folder), f"the tests below would run with {client} {version} of {where}"
    tests = [f"tests/contract/test_promises.py::{name}[{row}]" for name in PROMISES]
    ran = _run(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert ran.returncode == 0, f"{client} {version} does not work: {ran.stdout[-6000:]}"
    assert re.search(rf"\b{len(tests)} passed", ran.stdout), ran.stdout[-2000:]


def _run(environment, *arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
