import tempfile
from pathlib import Path

import pytest

from tests.contract.labs import MemoryLab, SQLiteLab

MEMORY_DISK = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path):
    """In memory where the system has such a place: a process that is killed loses nothing there, and a sync costs nothing."""
    if not MEMORY_DISK.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK, prefix="unpoison-") as folder:
        yield Path(folder)


@pytest.fixture(params=[SQLiteLab, MemoryLab], ids=["sqlite", "memory"])
def lab(request, folder):
    with request.param(folder) as lab:
        yield lab
