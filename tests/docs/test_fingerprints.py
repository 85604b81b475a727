"""Is what docs/dead-letters.md says about fingerprints what is compared?"""

from tests.docs.pages import ROOT
from unpoison.model.error_text import READ, gist
from unpoison.model.fingerprint import VERSION
from unpoison.model.traceback_text import LIMIT

SECTION = (ROOT / "docs" / "dead-letters.md").read_text().partition("\n## Fingerprints\n")[2]


def test_of_each_text_on_the_page_what_it_says_is_compared():
    rows = [line.split(" | ") for line in SECTION.splitlines() if line.startswith("| `") and line.count("`") == 4]
    assert len(rows) > 8
    for text, compared in rows:
        assert gist(text.strip("| `")) == compared.strip("| `")


def test_the_version_and_the_limits_are_those_of_the_code():
    assert f"`{VERSION}-" in SECTION
    assert f"{READ:,} characters" in " ".join(SECTION.split())
    assert f"{LIMIT:,} of its traceback" in SECTION
