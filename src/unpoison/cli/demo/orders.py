"""The app that the demo runs: it consumes the shop's orders from the broker that UNPOISON_URL names.

An app like any user's; workers import it by name. Its limits are short to keep the demo short.
"""

from unpoison.app import App
from unpoison.cli.demo.shop import MEMORY, ship
from unpoison.model.backoff import Backoff

SOURCE = "orders"
MAX_BODY = 4096

app = App(max_body=MAX_BODY, worker_memory=MEMORY)

app.consumer(
    SOURCE, max_attempts=3, backoff=Backoff.exponential(base=0.1, max=0.5), timeout=0.5, concurrency=4, isolation="process"
)(ship)
