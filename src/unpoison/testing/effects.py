"""What did handlers really do? Written down outside of the broker, so that no fault of it can hide a start."""

import os
from collections import Counter
from pathlib import Path


class Effects:
    """Lines that any thread and any process may add. One is there for good once `add` returns, even if the process is killed."""

    def __init__(self, folder: Path, name: str = "effects") -> None:
        self._path = folder / name

    def add(self, line: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{line}\n".encode())  # one write to a file opened for appending is never torn or mixed
        finally:
            os.close(descriptor)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []

    def counted(self) -> Counter[str]:
        return Counter(self.lines())

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
