"""Every broker that several processes can use keeps the promises about isolated workers. Which is tried where: matrix.py."""

from unpoison.testing.isolation.promises import *  # noqa: F403
