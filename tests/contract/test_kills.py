"""Every broker keeps the promises about kills at every line. Which of them is tried where: matrix.py."""

from unpoison.testing.contract.killing import *  # noqa: F403
