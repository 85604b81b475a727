"""The garbage collector looks less often while consumers run that leave nothing for it, and as before when they have ended."""

import gc

import pytest

from unpoison import App
from unpoison.app_internals import consumers_of
from unpoison.flow.run import COLLECT_AFTER, Run
from unpoison.flow.runnable import RunnableApp


def handle(order):
    """Never called."""


def seen_while_running(url, isolation):
    app, seen = App(url), []
    app.consumer("orders", isolation=isolation)(handle)
    run = Run([RunnableApp(app.settings, [consumers_of(app)["orders"].options], lambda: consumers_of(app), None)])
    run._consume = lambda *_: seen.append(gc.get_threshold()[0])
    run.serve()
    return seen


@pytest.mark.parametrize("url", ["sqlite:///unused.db", "kafka://unused?group=shop"])
def test_isolated_consumers_whose_client_leaves_no_cycles_are_spared(url):
    before = gc.get_threshold()
    assert seen_while_running(url, "process") == [COLLECT_AFTER]
    assert gc.get_threshold() == before


@pytest.mark.parametrize(("url", "isolation"), [("sqs://?region=eu-west-1", "process"), ("sqlite:///unused.db", "thread")])
def test_what_clients_or_handlers_leave_here_is_found_as_soon_as_ever(url, isolation):
    before = gc.get_threshold()
    assert seen_while_running(url, isolation) == [before[0]]
