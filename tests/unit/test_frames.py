"""Whose code a frame of a traceback is, on any machine."""

import re

import pytest

from unpoison.model import frames
from unpoison.model.frames import Whose, of_user, whose


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/app/shop/handlers.py", Whose.USERS),
        ("shop.py", Whose.USERS),
        ("C:\\shop\\lib\\handlers.py", Whose.USERS),
        ("C:\\shop\\Lib\\handlers.py", Whose.USERS),
        ("/srv/shop.pyz/shop/handlers.py", Whose.USERS),
        ("/home/me/lib/shop/python3.py", Whose.USERS),
        ("/home/me/unpoison/shop.py", Whose.USERS),
        ("<stdin>", Whose.USERS),
        ("<python-input-3>", Whose.USERS),
        ("/app/.venv/lib/python3.12/site-packages/requests/api.py", Whose.LIBRARYS),
        ("/usr/lib/python3/dist-packages/requests/api.py", Whose.LIBRARYS),
        ("C:\\app\\venv\\Lib\\site-packages\\requests\\api.py", Whose.LIBRARYS),
        ("/home/app/.pex/installed_wheels/ab/requests-2.32-py3-none-any.whl/requests/api.py", Whose.LIBRARYS),
        ("/app/__pypackages__/3.12/lib/requests/api.py", Whose.LIBRARYS),
        ("asyncpg/protocol/protocol.pyx", Whose.LIBRARYS),
        ("/usr/lib/python3.11/json/decoder.py", Whose.PYTHONS),
        ("/usr/lib64/python3.13t/json/decoder.py", Whose.PYTHONS),
        ("/opt/pypy/lib/pypy3.11/json/decoder.py", Whose.PYTHONS),
        ("/usr/lib/python312.zip/json/decoder.py", Whose.PYTHONS),
        ("C:\\Program Files\\Python312\\Lib\\json\\decoder.py", Whose.PYTHONS),
        ("<frozen importlib._bootstrap>", Whose.PYTHONS),
        ("<string>", Whose.PYTHONS),
        ("<attrs generated init shop.Order>", Whose.PYTHONS),
        ("/app/.venv/lib/python3.12/site-packages/unpoison/worker/call.py", Whose.OURS),
        ("/home/me/unpoison/src/unpoison/app.py", Whose.OURS),
        ("/app/vendor/unpoison/worker/call.py", Whose.OURS),
    ],
)
def test_whose_a_frame_is_can_be_told_from_its_path(file, owner):
    assert whose(file) is owner


def test_a_real_library_python_and_we_ourselves_are_told_apart():
    assert whose(pytest.__file__) is Whose.LIBRARYS
    assert whose(re.__file__) is Whose.PYTHONS
    assert whose(frames.__file__) is Whose.OURS
    assert whose(__file__) is Whose.USERS


SITE = "/app/.venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("files", "users"),
    [
        (["/app/shop.py", f"{SITE}/requests/api.py"], [0]),
        ([f"{SITE}/shop/handlers.py", f"{SITE}/requests/api.py", f"{SITE}/shop/hooks.py"], [0, 2]),
        ([f"{SITE}/tenacity/__init__.py", f"{SITE}/shop/handlers.py", f"{SITE}/requests/api.py"], [1]),
        ([f"{SITE}/tenacity/__init__.py", "/app/shop.py"], [1]),
        ([f"{SITE}/unpoison/worker/call.py", "/usr/lib/python3.12/asyncio/runners.py", f"{SITE}/shop/handlers.py"], [2]),
        (["/usr/lib/python3.12/json/decoder.py"], []),
        ([], []),
    ],
)
def test_an_app_that_is_installed_as_a_package_is_the_users_code(files, users):
    assert of_user(files) == users
