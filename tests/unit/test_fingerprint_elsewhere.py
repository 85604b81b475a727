"""Fingerprints of real answers, of real crashes, and of what other Pythons and machines wrote."""

import asyncio
import threading
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which

import aiohttp
import httpx
import pytest
import requests

from tests.unit import classifying
from tests.unit.fingerprinting import RECORDED, TRACEBACKS, crashed, letter, of, recorded
from unpoison.model.fingerprint import of_letter

NAMES = sorted(RECORDED["3.11"])

# Real answers of a real server.


class Shop(BaseHTTPRequestHandler):
    """Answers /503/orders/17 with that status."""

    def do_GET(self):
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """No lines on the screen."""


@pytest.fixture(scope="module")
def shop():
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def by_requests(url):
    requests.get(url, timeout=5).raise_for_status()


def by_httpx(url):
    httpx.get(url).raise_for_status()


def by_urllib(url):
    try:
        urllib.request.urlopen(url)
    except urllib.error.HTTPError as error:
        error.close()
        raise


def by_aiohttp(url):
    async def get():
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url):
            pass

    asyncio.run(get())


@pytest.mark.parametrize("client", [by_requests, by_httpx, by_urllib, by_aiohttp])
def test_the_status_of_an_answer_counts_and_the_url_does_not(shop, client):
    letters = {(status, n): of(client, f"{shop}/{status}/orders/{n}?q={n}") for status in (401, 404, 429, 503) for n in (1, 4711)}
    groups = {status: {of_letter(letters[status, n]) for n in (1, 4711)} for status, _ in letters}
    assert all(len(group) == 1 for group in groups.values()), {key: one.error for key, one in letters.items()}
    assert len(set.union(*groups.values())) == 4


closed_port = pytest.fixture(classifying.closed_port)


@pytest.mark.parametrize("client", [by_requests, by_httpx, by_urllib, by_aiohttp])
def test_a_connection_that_is_refused_at_any_port_is_one_group_and_apart_from_an_answer(shop, closed_port, client):
    refused = [of(client, f"http://127.0.0.1:{port}/orders/{n}") for n, port in enumerate((closed_port, 1))]
    assert len({of_letter(one) for one in refused}) == 1, [one.error for one in refused]
    assert of_letter(of(client, f"{shop}/503/orders/1")) != of_letter(refused[0])


# Real crashes.

SEGFAULT = "def ship(n):\n    ctypes.string_at(0)\nship(1)\n"


def test_a_crash_is_known_by_its_signal_and_the_last_frame_of_the_users_code(tmp_path):
    in_thread = "thread = threading.Thread(target=ship, args=(1,))\nthread.start()\nthread.join()\n"
    beside = "def other():\n    threading.Event().wait()\nthreading.Thread(target=other, daemon=True).start()\n"
    together = [
        crashed(SEGFAULT, tmp_path),
        crashed(SEGFAULT, tmp_path, "release/2/shop.py", lines=7),
        crashed(SEGFAULT.replace("ship(1)\n", in_thread), tmp_path),
        crashed(beside + SEGFAULT, tmp_path),
    ]
    apart = [
        crashed(SEGFAULT, tmp_path, "stock.py"),
        crashed(SEGFAULT.replace("ship", "pay"), tmp_path),
        crashed("def ship(n):\n    os.abort()\nship(1)\n", tmp_path),
        crashed("os.kill(os.getpid(), 9)", tmp_path),
        crashed("os.kill(os.getpid(), 9)", tmp_path, source="payments"),
        crashed("os._exit(3)", tmp_path),
        crashed("os._exit(4)", tmp_path),
    ]
    assert {one.crash.signal or one.crash.exit_code for one in together} == {"SIGSEGV"}
    assert len({of_letter(one) for one in together}) == 1
    assert len({of_letter(one) for one in [together[0], *apart]}) == 1 + len(apart)


def test_a_kill_without_a_stack_is_known_by_its_source(tmp_path):
    killed = [crashed("os.kill(os.getpid(), 9)", tmp_path, f"{n}.py", lines=n) for n in (1, 2)]
    assert not killed[0].crash.stack
    assert of_letter(killed[0]) == of_letter(killed[1])


# Other Pythons, machines and paths.

PLACES = {
    "a container": [("/srv/app/", "/app/")],
    "a home folder": [("/srv/app/", "/home/ann/work/café/")],
    "an installed package": [("/srv/app/", "/app/.venv/lib/python3.12/site-packages/shop/")],
    "a zip file": [("/srv/app/", "/srv/shop.pyz/")],
    "a virtualenv's Python": [("/usr/local/lib/", "/opt/pyenv/versions/3.x/lib/")],
    "Debian's Python": [("/usr/local/lib/", "/usr/lib/")],
    "Windows": [("/srv/app/", "C:\\work\\"), *((f"/usr/local/lib/python3.{n}/", "C:\\Python3\\Lib\\") for n in (11, 12, 13))],
}


def elsewhere(name, version, pairs):
    kind, error, traceback = RECORDED[version][name]
    for old, new in pairs:
        error, traceback = error.replace(old, new), traceback.replace(old, new)
    return letter(kind, error, traceback)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_is_the_same_with_every_python_on_every_machine(name):
    letters = {
        f"{version} in {place}": elsewhere(name, version, pairs) for version in RECORDED for place, pairs in PLACES.items()
    }
    assert len(letters) >= 21
    assert len({of_letter(one) for one in letters.values()}) == 1


def test_the_failures_of_the_recorded_handlers_are_apart_from_each_other():
    assert len({of_letter(letter(*RECORDED["3.13"][name])) for name in NAMES}) == len(NAMES) > 30


def test_the_recorded_failures_happen_here_too_with_other_values_lines_and_places(tmp_path):
    source = (TRACEBACKS / "shop.py").read_text()
    (tmp_path / "shop.py").write_text("# moved\n" * 40 + source)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as packed:
        packed.writestr("shop.py", source)
    installed = tmp_path / "lib" / "python3.12" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "shop.py").write_text(source)
    for number, place in ((18, tmp_path), (99, tmp_path / "app.zip"), (3, installed)):
        for name, one in recorded(None, number, place).items():
            assert of_letter(one) == of_letter(letter(*RECORDED["3.11"][name])), (name, place, one.traceback)


def pythons():
    """Those that are installed, whether or not the shell would find them."""
    installed = Path.home().glob(".pyenv/versions/3.1[1-9].*/bin/python3")
    found = [which(f"python3.{n}") for n in range(11, 20)]
    return sorted({*map(str, installed), *(path for path in found if path and "shims" not in path)})


@pytest.mark.parametrize("python", pythons())
def test_every_python_of_this_machine_agrees_with_what_was_recorded(python):
    for name, one in recorded(None, 22, python=python).items():
        assert of_letter(one) == of_letter(letter(*RECORDED["3.11"][name])), (name, one.traceback)
