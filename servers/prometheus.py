"""Prometheus, to scrape consumers under test and to evaluate alerts. Its package brings promtool, which tries rules on series
that are made up.

It keeps its samples in its own folder, scrapes every second, and reads rules and targets again when it is told to.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from servers.errors import ServerFailed
from servers.places import Machine
from servers.server import Entry, Server

CONFIGURATION = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [rules.yml]
scrape_configs:
  - job_name: unpoison
    file_sd_configs:
      - files: [targets.json]
        refresh_interval: 1s
"""


class Prometheus(Server):
    # A private one is made for a test, and nobody asks for its samples later.
    leaves_nothing_when_killed = True

    @property
    def url(self) -> str:
        return self.given or f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        self.hand_over(self.folder / "data")
        self.write("rules.yml", "groups: []\n")
        self.write("targets.json", "[]\n")

    def configure(self, settings: Mapping[str, str]) -> None:
        self.write("prometheus.yml", CONFIGURATION)

    def commands(self) -> dict[str, list[str]]:
        program = self.entry.place.find(*PROGRAMS) or PROGRAMS[0]
        options = {
            "config.file": self.folder / "prometheus.yml",
            "storage.tsdb.path": self.folder / "data",
            "web.listen-address": f"127.0.0.1:{self.port}",
            "log.level": "warn",
        }
        return {"server": [program, "--web.enable-lifecycle", *(f"--{name}={value}" for name, value in options.items())]}

    def answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):
            return False

    def version(self) -> str:
        return str(self.api("status/buildinfo")["version"])

    def fresh(self) -> str:
        """It has one place for all: its samples are told apart by their job."""
        return self.url

    def api(self, path: str, **parameters: str) -> Any:
        """The data of an answer: api("query", query="up")."""
        asked = Request(f"{self.url}/api/v1/{path}", data=urlencode(parameters).encode() or None)
        with urlopen(asked, timeout=10) as answer:
            said = json.loads(answer.read())
        if said["status"] != "success":
            raise ServerFailed(f"{path} {parameters}: {said}")
        return said["data"]

    def scrape(self, targets: Sequence[str]) -> None:
        """Scrape these host:port from now on, each at /metrics."""
        self.write("targets.fresh", json.dumps([{"targets": list(targets)}]))
        (self.folder / "targets.fresh").rename(self.folder / "targets.json")

    def load_rules(self, text: str) -> None:
        """Evaluate these rules from now on."""
        self.write("rules.yml", text)
        with urlopen(Request(f"{self.url}/-/reload", method="POST"), timeout=10):
            pass


def promtool(*arguments: str, folder: Path) -> tuple[int, str]:
    """Run promtool in a folder; gives its exit code and what it prints."""
    program = PROMETHEUS.place.find("/usr/bin/promtool", "/usr/local/bin/promtool") or "promtool"
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


PROGRAMS = ("/usr/bin/prometheus", "/usr/local/bin/prometheus")
PROMETHEUS = Entry("prometheus", "UNPOISON_TEST_PROMETHEUS_URL", Machine(("prometheus",), PROGRAMS), Prometheus)
