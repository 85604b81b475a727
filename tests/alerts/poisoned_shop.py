"""An app whose handlers do what the message says: for a real consumer under poison."""

import os

from unpoison import App, Backoff, Permanent, RetryLater

app = App(os.environ["SHOP_URL"], code_version="1.4.1")
QUICK = Backoff.fixed(0.01)


def act(body: str) -> None:
    what = body.strip('"').partition(" ")[0]
    if what == "die":
        os.abort()
    if what == "wrong":
        raise Permanent("no such article")
    if what == "down":
        raise ConnectionError("billing refused the connection")


@app.consumer("orders", max_attempts=5, backoff=QUICK, admission=None, concurrency=2)
def ship(body: str) -> None:
    act(body)


@app.consumer("imports", max_attempts=2, backoff=QUICK, concurrency=1)
def load(body: str) -> None:
    act(body)


@app.consumer("mails", max_attempts=5, backoff=QUICK, depends_on="billing", concurrency=1)
def send(body: str) -> None:
    act(body)


@app.consumer("reports", concurrency=1)
def report(body: str) -> None:
    raise RetryLater(0.05)
