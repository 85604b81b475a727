"""How do messages get into the queue of a peer? `publishing.py app publish 5000`, or `publishing.py app kill-test`.

An app has `publish(orders)`. It may have `prepare()`, which makes what must be there before, and `garbage(body)`, which puts
bytes into the queue as a foreign program would; without it, such bytes cannot be stored there.
"""

import importlib
import sys

import work


def main(module: str, *what: str) -> None:
    # Imported by its name, as the worker does it: some peers write the name of the module into their messages.
    app = importlib.import_module(module)
    if hasattr(app, "prepare"):
        app.prepare()
    match what:
        case ["publish", count]:
            app.publish(work.Orders(int(count)))
        case ["kill-test"]:
            app.publish(work.kill_test())
            if hasattr(app, "garbage"):
                app.garbage(work.GARBAGE)
        case other:
            sys.exit(f"{other} is not known. There are: publish COUNT, kill-test")


if __name__ == "__main__":
    main(*sys.argv[1:])
