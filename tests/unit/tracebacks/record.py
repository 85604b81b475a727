"""Which texts does this Python write about the failures of shop.py? Prints them as JSON: name → [type, text, traceback].

Run with any Python from 3.11 on, as `python3.12 record.py 17 > 3.12.json`. An argument after the number is a folder or a zip file
with another shop.py. Paths of the machine are taken out.
"""

import importlib
import inspect
import json
import sys
import traceback
from pathlib import Path


def main(number, place):
    sys.path.insert(0, place)
    sys.setrecursionlimit(150)  # deep enough, and the texts stay short
    shop = importlib.import_module("shop")
    own = {name: one for name, one in vars(shop).items() if inspect.isfunction(one) and one.__module__ == "shop"}
    helpers = {"checked", "transaction", "even", "odd", "down", "one", "both", "threaded", "in_async_generator_of", "consume"}
    handlers = {name: handler for name, handler in own.items() if name not in helpers}
    handlers["down"] = shop.down
    return {name: failure_of(handler, number) for name, handler in handlers.items()}


def failure_of(handler, number):
    try:
        handler(number)
    except BaseException as error:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        trace = error.__traceback__.tb_next  # without this function
        return [name, elsewhere(str(error)), elsewhere("".join(traceback.format_exception(kind, error, trace)))]
    raise AssertionError(f"{handler.__name__} raised nothing")


def elsewhere(text):
    return text.replace(sys.base_prefix, "/usr/local").replace(str(Path(__file__).parent), "/srv/app")


if __name__ == "__main__":
    found = main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else str(Path(__file__).parent))
    json.dump(found, sys.stdout, indent=1, ensure_ascii=False)
    print()
