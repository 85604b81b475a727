"""What does somebody read at 3 a.m. who has typed or configured something wrong?

Each text says what is wrong, with the value; what that means; and what to do.
"""

import re
import subprocess
import sys

import pytest

from tests.e2e.command_line import dead_letters, unpoison
from unpoison import App, Backoff, PoisonPillHandler, Policy, RetryLater
from unpoison.errors import ConfigError, PayloadError, UnpoisonError

APP = "from unpoison import App\napp = App('sqlite:///shop.db')\n"
HANDLER = "@app.consumer('orders'{})\ndef ship(order): ...\n"

FILES = {
    "good.py": APP + HANDLER.format("") + "@app.consumer('emails')\ndef send(email): ...\n",
    "syntax.py": "def ship(:\n",
    "missing.py": "import no_such_package\n",
    "raises.py": APP + "PRICES = {}['book']\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "dies.py": "import os\nos._exit(4)\n",
    "aborts.py": "import os\nos.abort()\n",
    "hangs.py": "import time\ntime.sleep(600)\n",
    "runs.py": APP + HANDLER.format("") + "app.run()\n",
    "empty.py": APP,
    "nothing.py": "app = 3\n",
    "zero.py": APP + HANDLER.format(", max_attempts=0"),
    "typo.py": APP + HANDLER.format(", retries=3"),
    "memory.py": "from unpoison import App\napp = App('memory://')\n" + HANDLER.format(""),
    "extra.py": APP + "import sys\nsys.modules['jsonschema'] = None\n" + HANDLER.format(", schema={'type': 'object'}"),
    "text.db": "this is no database, whatever its name says. " * 10,
    "bad.jsonl": '{"id": 1}\n{"id": 2\n',
}

ON_FILE = "--url sqlite:///shop.db --source orders"

USAGE = [
    ("frob", "No such command 'frob'. The commands are demo, run, publish"),
    ("rnu", "Did you mean 'run'?"),
    ("--frob", "No such option '--frob'"),
    ("run", "Missing argument 'MODULE:APP...'"),
    ("run good:app --until", "Did you mean '--until-empty'?"),
    ("run good:app --workers 0", "0 is not in the range x>=1"),
    ("run good:app --log-level loud", "is not one of 'debug', 'info', 'warning', 'error'"),
    ("publish", "No broker is named. Give its URL first, as in sqlite:///shop.db orders, or set the variable UNPOISON_URL."),
    ("publish shop.db orders 1", "'shop.db' is not a URL, so no broker is named. Give its URL first"),
    ("publish sqlite:///shop.db", "Missing argument 'SOURCE'"),
    ("publish sqlite:///shop.db orders --file nope.jsonl", "File 'nope.jsonl' does not exist"),
    ("publish sqlite:///shop.db orders 1 --delay soon", "'soon' is not a duration. Write seconds, or a number with"),
    ("publish sqlite:///shop.db orders 1 --header x", "Write --header name=value"),
    ("dlq frob", "The commands are ls, count, groups, show, reveal, replay, discard, restore"),
    ("dlq ls", "Name the app or the broker: add --app module:app or --url URL, or set UNPOISON_URL"),
    ("dlq ls --app good:app --url sqlite:///shop.db", "Give one of them"),
    ("dlq ls --app empty:app", "its sources are unknown. Add --source NAME"),
    ("dlq show --app good:app", "Missing argument 'ID'"),
    ("dlq replay --app good:app", "Give the ids of the letters to replay, or --where FILTER, or --all"),
    ("dlq replay --where sorce:x --app good:app", "There is no field 'sorce'. Did you mean 'source'?"),
    ("dlq replay --all --dry-run --app good:app", "--dry-run says which letters a filter means. Add --where FILTER"),
    ("dlq discard --app good:app", "Give the ids of the letters to discard, or --where FILTER"),
    ("dlq replay --all --app good:app", "Add --source NAME. Sources here: orders, emails"),
    ("completion tcsh", "is not one of 'bash', 'zsh', 'fish'"),
]

FAILURES = [
    ("run nosuch:app", "no module 'nosuch'", "give the file: path/to/nosuch.py:app"),
    ("run nosuch.py:app", "no file 'nosuch.py'", "Check the path; it is relative to"),
    ("run good:nope", "'good' has no App named 'nope'", "It has app. Write good:app"),
    ("run nothing:app", "It has none", "write app = App('sqlite:///shop.db') in it"),
    ("run good:", "'good:' does not name an app", "Write module:app"),
    ("run syntax:app", "SyntaxError", "syntax.py, line 1: def ship(:\nFix it there"),
    ("run missing:app", "No module named 'no_such_package'", "Install what is missing into this Python environment"),
    ("run raises:app", "KeyError: 'book'", "raises.py, line 3: PRICES = {}['book']\nFix it there"),
    ("run exits:app", "SystemExit: 3", "move that under if __name__ == '__main__':"),
    ("run dies:app", "ended with exit code 4 before the app was ready", "run: python -c 'import dies'"),
    ("run aborts.py:app", "was killed by SIGABRT before the app was ready", "run: python aborts.py"),
    ("run hangs:app", "took more than 1 s and was ended", "give it longer: UNPOISON_START_TIMEOUT=120"),
    ("run runs:app", "is called while worker processes import the app", "Put it under if __name__ == '__main__':"),
    ("run empty:app", "no consumer, so there is nothing to run", "@app.consumer('orders')"),
    ("run zero:app", "max_attempts must be 1 or more, got 0", "for no limit use None"),
    ("run typo:app", "unexpected keyword argument 'retries'", "typo.py, line 3"),
    ("run extra:app", "needs the package 'jsonschema'", "pip install 'unpoison[jsonschema]'"),
    ("publish carrier://ada:secret@loft orders 1", "'carrier://ada:***@loft' names no broker", "It knows sqlite://"),
    ("publish sqlite://shop.db orders 1", "names no SQLite file", "If that file is meant, write sqlite:///shop.db"),
    ("publish sqlite:///shop.db?x=1 orders 1", "options behind '?'", "Remove '?x=1'"),
    ("publish sqlite:///no/such/shop.db orders 1", "does not exist", "mkdir -p"),
    ("publish sqlite:///text.db orders 1", "not an intact SQLite database", "restore it from a backup"),
    ("publish sqlite:///folder.db orders 1", "unable to open database file", "Check that it is a file and no folder"),
    ("publish memory:// orders 1", "no consumer would ever see these", "use a broker that processes can share"),
    ("publish sqlite:///shop.db orders hello", "Payload 1 ('hello') is not JSON", "--raw or --lines"),
    ("publish sqlite:///shop.db orders --file bad.jsonl", "Line 2 is not JSON", "Fix it"),
    ("dlq ls --url sqlite:///nope.db --source orders", "'nope.db' does not exist", "Check the path"),
    ("dlq ls --url sqlite:///shop.db --source odrers", "Source 'odrers' does not exist", "Sources there: 'orders'"),
    ("dlq ls --url sqlite:///text.db --source orders", "not an intact SQLite database", "Point the URL at another file"),
    ("dlq ls --app memory:app", "so this one cannot see them", "app.dlq('orders')"),
    ("dlq ls --app syntax:app", "SyntaxError", "Fix it there"),
    (f"dlq show orders-99 {ON_FILE}", "Dead letter 'orders-99' of 'orders' does not exist", "unpoison dlq ls --state all"),
    ("dlq show orders-99 --app good:app", "is in none of 'orders', 'emails'", "unpoison dlq ls --state all"),
    (f"dlq replay --all {ON_FILE}", "There is no terminal to ask on", "add --yes"),
    (f"dlq purge {ON_FILE}", "There is no terminal to ask on", "add --yes"),
]


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.db").mkdir()
    return tmp_path


@pytest.mark.parametrize(("line", "said"), USAGE, ids=[line for line, _ in USAGE])
def test_wrong_usage_names_what_is_wrong_and_where_to_look(folder, line, said):
    if "--app" in line:
        dead_letters(folder, b"1")
    ended = unpoison(*line.split(), cwd=folder)
    assert (ended.code, ended.text) == (2, "")
    assert said in ended.err
    assert re.search(r"Try 'unpoison.* --help' for help\.", ended.err)


@pytest.mark.parametrize(("line", "wrong", "cure"), FAILURES, ids=[line for line, *_ in FAILURES])
def test_a_failure_says_what_is_wrong_and_what_to_do(folder, line, wrong, cure):
    if "dlq" in line:
        dead_letters(folder, b"1")
    ended = unpoison(*line.split(), cwd=folder, UNPOISON_START_TIMEOUT="1" if "hangs" in line else "60")
    assert (ended.code, ended.text) == (1, "")
    assert ended.err.startswith("Error: ")
    assert wrong in ended.err
    assert cure in ended.err
    assert "Traceback" not in ended.err
    assert "secret" not in ended.err


VARIABLES = [
    ("UNPOISON_GRACE", "soon", "UNPOISON_GRACE must be a number, got 'soon'. Set it to one, or unset it"),
    ("UNPOISON_CREATE", "maybe", "UNPOISON_CREATE must be true or false, got 'maybe'. Set it to one of them"),
    ("UNPOISON_MAX_BODY", "-1", "max_body must be a whole number of 0 or more, got -1. Leave it out"),
]


@pytest.mark.parametrize(("variable", "value", "said"), VARIABLES, ids=[variable for variable, *_ in VARIABLES])
def test_a_variable_that_cannot_work_is_named(folder, variable, value, said):
    ended = unpoison("publish", "sqlite:///shop.db", "orders", "1", cwd=folder, **{variable: value})
    assert ended.code == 1
    assert said in ended.err


def test_a_variable_that_nobody_knows_is_warned_about(folder):
    ended = unpoison("publish", "sqlite:///shop.db", "orders", "1", cwd=folder, UNPOISON_GARCE="3")
    assert ended.code == 0
    assert ended.err.startswith("Warning: UNPOISON_GARCE is not a setting of unpoison and is ignored. Known are UNPOISON_URL, ")


def consumer(**options):
    @App("sqlite:///shop.db").consumer(options.pop("source", "orders"), **options)
    def ship(order: dict): ...


def publish(payload=None, source="orders", **options):
    App("memory://").publish(source, payload, **options)


OPTIONS = [
    (App, "App needs a broker URL. Write App('sqlite:///shop.db')"),
    (lambda: App(5), "must be text, got 5. Write App('sqlite:///shop.db')"),
    (lambda: App("shop.db"), "for a file here use sqlite:///shop.db"),
    (lambda: App("memory://", grace=-1), "got -1. Use seconds or a timedelta"),
    (lambda: App("memory://", prefetch=0), "prefetch must be a whole number of 1 or more, got 0. Leave it out"),
    (lambda: App("memory://", start_timeout="soon"), "got 'soon'. Use seconds or a timedelta"),
    (lambda: consumer(source=" x "), "without spaces around it, got ' x '. For example 'orders'"),
    (lambda: consumer(max_attempts="3"), "max_attempts must be 1 or more, got '3'"),
    (lambda: consumer(backoff=3), "got 3. Make one, for example Backoff.exponential"),
    (lambda: consumer(timeout="5"), "Consumer 'orders': timeout must be a duration"),
    (lambda: consumer(max_age=-1), "max_age must be a duration of 0 seconds or more, got -1"),
    (lambda: consumer(schema=3), "got 3. Pass one of these, or None"),
    (lambda: consumer(classify=3), "(classify= of a consumer) must be a function, got 3"),
    (lambda: consumer(policies=3), "got 3. Pass a dict"),
    (lambda: consumer(policies={"ValueError": Policy()}), "Import the class itself"),
    (lambda: consumer(policies={ValueError: Policy(classification="nope")}), "'nope'. There are transient, throttled"),
    (lambda: consumer(key_from=3), "must be 'header:name' or 'body:path.to.field', got 3"),
    (lambda: consumer(concurrency=0), "got 0. For one message at a time use 1"),
    (lambda: consumer(threads=0), "threads must be 1 or more, got 0"),
    (lambda: consumer(isolation="vm"), "one of 'process', 'thread', 'inline', got 'vm'"),
    (lambda: consumer(handler=3), "must be a PoisonPillHandler, got 3. Make one or leave it out"),
    (lambda: consumer(handler=PoisonPillHandler(), max_attempts=3), "Set them on the PoisonPillHandler"),
    (lambda: PoisonPillHandler(on_dlq=3), "on_dlq must be a function, got 3"),
    (lambda: Backoff.exponential(factor="x"), "factor must be 1 or more, got 'x'"),
    (lambda: Backoff.exponential(base=5, max=1), "Swap them"),
    (lambda: Backoff.list([]), "For no delay use Backoff.immediate()"),
    (lambda: RetryLater(after=-1), "got -1. Use seconds or a timedelta"),
    (lambda: publish(source=""), "A source must be a name without spaces around it, got ''"),
    (lambda: App("memory://").publish_many(" orders", []), "A source must be a name"),
    (lambda: publish(object()), "Convert it to plain values first, or send bytes"),
    (lambda: publish(float("nan")), "Send None or text instead"),
    (lambda: publish(2**70), "does not fit into 64 bits"),
    (lambda: publish(key=5), "key must be text, got 5. Turn it into a string"),
    (lambda: publish(headers=3), "got 3. Pass a dict"),
    (lambda: publish(headers={"a": 1}), "got 'a': 1. Turn the value into a string"),
    (lambda: publish(delay="soon"), "delay must be a duration of 0 seconds or more, got 'soon'"),
    (lambda: publish("x" * 20_000_000), "Send a reference to where it is stored, or raise max_body"),
]


@pytest.mark.parametrize(("wrong", "said"), OPTIONS, ids=[said[:40] for _, said in OPTIONS])
def test_an_option_that_cannot_work_is_refused_with_what_to_do(wrong, said, monkeypatch):
    monkeypatch.delenv("UNPOISON_URL", raising=False)
    with pytest.raises(UnpoisonError) as caught:
        wrong()
    assert isinstance(caught.value, ConfigError | PayloadError)
    assert said in str(caught.value)
    assert "!" not in str(caught.value)


def test_an_app_that_its_workers_cannot_find_is_refused_with_what_to_do(tmp_path):
    lines = ["from unpoison import App", "def made():", "    app = App('sqlite:///shop.db')"]
    lines += ["    app.consumer('orders')(print)", "    return app", "made().run()"]
    (tmp_path / "hidden.py").write_text("\n".join(lines))
    ended = subprocess.run([sys.executable, "hidden.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert "Put app = App(…) there, or use isolation='thread'" in ended.stderr.splitlines()[-1]
