"""What the corpus of fingerprints is made of: letters of real failures, and of texts that other Pythons and programs wrote."""

import json
import subprocess
import sys
from pathlib import Path

from tests.unit.classifying import raised
from unpoison.body.guard import decoder
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.failure import Crash, describe
from unpoison.model.message import Message
from unpoison.worker.call import unfit, without_our_frames

TRACEBACKS = Path(__file__).parent / "tracebacks"
RECORDED = {file.stem: json.loads(file.read_text()) for file in sorted(TRACEBACKS.glob("*.json"))}


def letter(kind="ValueError", error="", traceback="", crash=None, rule="permanent: given", source="orders", mark=""):
    return DeadLetter(
        message=Message("id", source, b"{}"),
        attempts=1,
        classification="permanent",
        rule=rule,
        reason="given",
        error_type=kind,
        error=error,
        traceback=traceback,
        crash=crash,
        fingerprint=mark,
        first_failed_at=0.0,
        last_failed_at=0.0,
    )


def of(action, *arguments, source="orders"):
    """The letter of what an action really raises."""
    error = raised(action, *arguments)
    error.__traceback__ = without_our_frames(error.__traceback__.tb_next)  # without the frame of `raised`
    return letter(*describe(error), source=source)


def handler(code, path="/app/shop.py", name="ship"):
    """A function that is compiled as if it stood in this file."""
    scope = {"__name__": Path(path).stem}
    exec(compile(code, path, "exec"), scope)
    return scope[name]


def misfit(body, annotation=dict, schema=None, source="orders"):
    """The letter of a body that the real guard refuses."""
    failure = unfit(raised(decoder(annotation, schema, max_body=10_000, max_depth=20), body))
    return letter(failure.type_name, failure.text, rule=f"invalid: {failure.rule}", source=source)


def recorded(name, number, place=TRACEBACKS, python=sys.executable):
    """The letter of a handler of shop.py, which is run by this Python here and now."""
    command = [python, "-B", str(TRACEBACKS / "record.py"), str(number), str(place)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return letter(*found[name]) if name else {name: letter(*one) for name, one in found.items()}


def crashed(code, tmp_path, file="shop.py", source="orders", lines=0):
    """The letter of a process that really crashes in this code."""
    script = tmp_path / file
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("import ctypes, faulthandler, os, threading, time\nfaulthandler.enable()\n" + "\n" * lines + code)
    ended = subprocess.run([sys.executable, "-B", str(script)], capture_output=True, text=True, check=False)
    names = {-11: "SIGSEGV", -6: "SIGABRT", -9: "SIGKILL"}
    crash = Crash(
        signal=names.get(ended.returncode),
        exit_code=ended.returncode if ended.returncode > 0 else None,
        stack=ended.stderr,
        elapsed=0.1,
    )
    return letter("unpoison.WorkerDied", f"the worker ended 0.{lines}7 s after", crash.stack, crash, source=source)


def crash_of(stack, signal="SIGSEGV"):
    return Crash(signal=signal, stack=stack)
