import tempfile
from pathlib import Path

import pytest

from tests.contract import matrix

MEMORY_DISK = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path):
    """In memory where the system has such a place: a process that is killed loses nothing there, and a sync costs nothing."""
    if not MEMORY_DISK.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK, prefix="unpoison-") as folder:
        yield Path(folder)


def pytest_generate_tests(metafunc):
    """Each promise is a test on each row of the matrix that has it."""
    if metafunc.function in matrix.EVERY:
        metafunc.parametrize("lab", matrix.parameters(metafunc.function), indirect=True)


@pytest.fixture
def lab(request, folder):
    with request.param.lab(request, folder) as lab:
        yield lab
