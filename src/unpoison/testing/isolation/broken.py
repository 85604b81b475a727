"""An app that cannot be imported: it raises, leaves, crashes or hangs on the way; or only once it was broken by a deploy."""

import ctypes
import os
import signal
import sys

from unpoison.testing.isolation.poisons import app as app  # noqa: PLC0414 - for as long as it can be imported
from unpoison.testing.isolation.poisons import diary, scene

match scene.also["import"]:
    case "raise":
        raise RuntimeError("the settings are missing")
    case "exit":
        sys.exit(3)
    case "crash":
        ctypes.string_at(0)
    case "hang":
        signal.pause()
    case "leave":
        os._exit(3)
    case "deploy" if diary.gate("broken").exists():
        raise RuntimeError("half of the new version is there")
