"""How does the package stand? `make sizes` prints it, and so does a test run that included the architecture."""

import sys
from pathlib import Path

from tests.architecture.rules import check

PACKAGE = Path(__file__).parents[2] / "src" / "unpoison"


def lines() -> list[str]:
    report = check(PACKAGE)
    return [
        report.summary,
        *(f"long: {remark}" for remark in report.remarks),
        *(f"broken: {problem}" for problem in report.problems),
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
    sys.exit(any(line.startswith("broken") for line in lines()))
