"""An app that cannot be imported: it raises, leaves, crashes or hangs on the way."""

import ctypes
import os
import signal
import sys

from bezoar.testing.isolation.poisons import scene

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
