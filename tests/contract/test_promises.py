"""Every broker keeps the promises about messages, retries and dead letters. Which of them is tried where: matrix.py."""

from unpoison.testing.contract.quick import *  # noqa: F403
