"""How does each peer get the packages that it needs, and no others?

In a virtual environment of its own in the user's cache folder, made from its requirements file. The name of the folder holds a
digest of that file and the version of Python: other packages, another environment.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.peers.setups import PEERS


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unpoison" / "peers"


def requirements(peer: str) -> Path:
    return PEERS / peer / "requirements.txt"


def python(peer: str) -> Path:
    """Its interpreter, whether it is there yet or not. Our own side has the environment of this process."""
    if peer == "unpoison":
        return Path(sys.executable)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(requirements(peer).read_bytes()).hexdigest()[:10]
    return cache() / f"{peer}-{version}-{digest}" / "bin" / "python"


def program(peer: str, name: str) -> str:
    return str(python(peer).with_name(name))


def make(peer: str, tell: Callable[[str], None]) -> None:
    """Have the environment; says what it does. Interrupted halfway, it is made anew the next time."""
    if peer == "unpoison":
        return
    folder, listed = python(peer).parent.parent, requirements(peer)
    complete = folder / "complete"
    if complete.exists():
        return
    tell(f"{peer}: making {folder}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    tell(f"{peer}: installing {len(versions(peer))} packages from {listed.relative_to(PEERS.parent.parent)}")
    pip = [python(peer), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--requirement", listed], check=True)
    complete.touch()


def versions(peer: str) -> dict[str, str]:
    """Package → version, as pinned."""
    lines = requirements(peer).read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return dict(sorted((name, version) for name, version in pinned))
