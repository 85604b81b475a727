"""Runs the benchmarks: `python bench/run.py --help`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.harness.main import main  # noqa: E402 - only now can it be found

if __name__ == "__main__":
    sys.exit(main())
