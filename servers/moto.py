"""moto: a server in Python that speaks the language of Amazon SQS and minds limits which ElasticMQ does not.

It keeps everything in memory: one that is killed has lost everything.
"""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servers.elasticmq import SQS
from servers.errors import ServerMissing
from servers.server import Entry


@dataclass(frozen=True)
class Module:
    """A server that is run by the Python that runs us, as whoever runs us: it may be somewhere nobody else can read."""

    package: str
    path: Path

    def get(self) -> None:
        if not importlib.util.find_spec(self.package):
            raise ServerMissing(f"{self.package} is not there. Run: pip install {self.package} flask flask-cors")

    def find(self, *patterns: str) -> str | None:
        return str(self.path)

    def command(self, inside: Sequence[str], state: Path) -> list[str]:
        return list(inside)

    @property
    def user(self) -> tuple[int, int] | None:
        return None


class Moto(SQS):
    def commands(self) -> dict[str, list[str]]:
        return {"server": [sys.executable, "-P", self.entry.place.find() or "", str(self.port)]}

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "MOTO_ACCOUNT_ID": "000000000000", "MOTO_PORT": str(self.port)}

    def version(self) -> str:
        return "unknown" if self.given else importlib.metadata.version("moto")


MOTO = Entry("moto", "UNPOISON_TEST_MOTO_URL", Module("moto", Path(__file__).with_name("moto_serving.py")), Moto)
