"""Every broker keeps the promises about messages, retries and dead letters. Which of them is tried where: matrix.py.

Those about kills at every line take long on a server: test_kills.py.
"""

from unpoison.testing.contract import PROMISES, killing

globals().update({name: promise for name, promise in PROMISES.items() if name not in vars(killing)})
