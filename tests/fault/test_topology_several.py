"""Is one script enough for apps on several brokers?"""

from urllib.parse import urlsplit

import pytest

from tests.e2e.command_line import unpoison
from tests.fault.planned_topology import run_script

APP = """
from unpoison import App

app = App({url!r}, create=False)

@app.consumer({source!r})
def ship(order: dict) -> None: ...
"""


@pytest.mark.long
def test_one_script_creates_what_apps_on_two_brokers_need(redis, postgresql, tmp_path):
    urls = {"shop": (redis.fresh(), "orders"), "mail": (postgresql.fresh(), "letters")}
    for name, (url, source) in urls.items():
        (tmp_path / f"{name}.py").write_text(APP.format(url=url, source=source))
    planned = "plan-topology", "shop:app", "mail:app"
    owner = urlsplit(urls["mail"][0])
    login = {"PGUSER": owner.username or "", "PGPASSWORD": owner.password or ""}
    run_script(unpoison(*planned, cwd=tmp_path).text, tmp_path, **login)
    again = unpoison(*planned, cwd=tmp_path)
    assert again.text.count("# Nothing is missing here.") == 2
    assert again.err == "Nothing is missing: everything that these sources need exists, and the user may use it.\n"
    for name in urls:
        assert unpoison("run", f"{name}:app", "--until-empty", cwd=tmp_path).code == 0
