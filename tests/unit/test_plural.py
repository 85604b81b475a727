import re
from pathlib import Path

import pytest

import unpoison
from unpoison.model.wording import counted


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ["message"], "0 messages"),
        (1, ["message"], "1 message"),
        (2, ["dead letter"], "2 dead letters"),
        (12_345, ["retry", "retries"], "12,345 retries"),
        (1, ["retry", "retries"], "1 retry"),
    ],
)
def test_a_count_is_said_as_people_say_it(count, words, said):
    assert counted(count, *words) == said


COUNTED = re.compile(r"(\{[^{}]*(:,|len\()[^{}]*\}|%d) (messages|(dead )?letters|retries|records|orders)\b")
NEVER_ONE = {
    "errors.py": "have the message id|None of |Of ",  # one id in several letters; one message has sentences of its own
    "findings.py": "wait for a person",  # more than a hundred
    "plan_chart.py": "simulated|All ",  # thousands
    "command.py": "Published |of \\{messages",  # 32 at least
    "screen.py": "sound orders done",  # of as many
    "damage.py": "messages, the last|in it all failed",  # more than are named; several in a row
    "publish.py": "",  # has a word for one of its own
    "broker.py": "others are stored",  # being several is why it is said
}


def test_every_count_of_something_goes_through_it():
    """Found by its look: a number right before a plural. Those that are never 1 are named above."""
    package = Path(unpoison.__file__).parent
    wrong = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        if "testing" not in path.parts
        for line in path.read_text().splitlines()
        if COUNTED.search(line) and not (path.name in NEVER_ONE and re.search(NEVER_ONE[path.name], line))
    ]
    assert wrong == []
