"""The app of scenes about flow control: its handler calls a dependency, and writes down when it started and when it was done.

A body may say {"calls": false} for a message that needs no dependency, {"raise": "KeyError"} for poison, and {"once": n} for a
failure of its own kind at the first attempt. `also` of the plan says where the dependency is, and whether the code is broken.
"""

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from unpoison.app import App
from unpoison.control.options import Admission, Breaker
from unpoison.model.backoff import Backoff
from unpoison.model.message import Delivery
from unpoison.testing.dependency import call
from unpoison.testing.isolation.diary import SOURCE, VARIABLE, Diary, Plan, current_plan

_STRUCTS: dict[str, Any] = {"breaker": Breaker, "admission": Admission, "backoff": Backoff}
_ERRORS: dict[str, type[Exception]] = {"KeyError": KeyError, "ConnectionError": ConnectionError}


def app_of(plan: Plan, **options: Any) -> App:
    """The app that the plan describes. Options travel as plain data."""
    given = {
        name: msgspec.convert(value, _STRUCTS[name]) if isinstance(value, dict) else value
        for name, value in {**plan.options, **options}.items()
    }
    app = App(plan.url, **plan.settings)
    app.consumer(SOURCE, **given)(_handler(plan))
    return app


def _handler(plan: Plan) -> Any:
    diary = Diary(Path(plan.folder))
    url, timeout, is_broken = plan.also["dependency"], plan.also.get("client_timeout"), plan.also.get("is_broken", False)

    def handle(payload: dict[str, Any], delivery: Delivery) -> None:
        diary.write("start", delivery.id, _now(), delivery.attempt, delivery.returned)
        if is_broken:
            raise KeyError("total")
        if payload.get("calls", True):
            call(url, delivery.id, timeout)
        if error := payload.get("raise"):
            raise _ERRORS[error]("poison")
        if (kind := payload.get("once")) is not None and delivery.attempt == 1:
            raise type(f"Cause{kind}", (ConnectionError,), {})("not now")
        diary.write("done", delivery.id, _now(), delivery.attempt)

    return handle


def _now() -> str:
    return str(time.monotonic())


if VARIABLE in os.environ:  # in the processes of such a consumer; a promise's own process needs `app_of` only
    app = app_of(current_plan())
