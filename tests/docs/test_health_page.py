"""Are the probes of docs/health.md right, and its figures those of the code?"""

import os
import subprocess
import sys
import time

import pytest
import yaml

from tests.docs.pages import ROOT, blocks
from unpoison.decide.options import Settings
from unpoison.observing import http
from unpoison.observing.health import HUNG_AFTER
from unpoison.observing.heartbeat import TOUCH_EVERY

PAGE = (ROOT / "docs" / "health.md").read_text()
YAML = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml"]
PROBES = [each["livenessProbe"]["exec"]["command"] for each in YAML if "livenessProbe" in each]
(HEALTHCHECK,) = [line.partition(" CMD ")[2] for line in PAGE.splitlines() if line.startswith("HEALTHCHECK")]


@pytest.mark.parametrize("probe", [*PROBES, ["sh", "-c", HEALTHCHECK]], ids=["find", "python", "docker"])
def test_a_probe_passes_while_the_file_is_renewed_and_fails_when_it_is_old_or_gone(probe, tmp_path):
    alive = tmp_path / "alive"
    here = [part.replace("/tmp/alive", str(alive)).replace("python", sys.executable) for part in probe]

    def passes():
        return subprocess.run(here, capture_output=True, check=False).returncode == 0

    assert not passes()
    alive.touch()
    assert passes()
    os.utime(alive, (time.time() - 130,) * 2)
    assert not passes()


def test_the_deployment_asks_what_is_answered_and_waits_long_enough():
    (deployment,) = [each for each in YAML if each.get("kind") == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (consumer,) = pod["containers"]
    asked = {name: probe["httpGet"]["path"] for name, probe in consumer.items() if name.endswith("Probe")}
    assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert pod["terminationGracePeriodSeconds"] > Settings("memory://").grace
    startup = consumer["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > Settings("memory://").start_timeout
    assert str(consumer["ports"][0]["containerPort"]) in consumer["command"]


def test_the_figures_are_those_of_the_code():
    assert HUNG_AFTER == 120.0
    assert "has not turned for two minutes" in PAGE
    assert f"every {TOUCH_EVERY:g} seconds while all loops turn" in PAGE
    assert http.LIMIT == 10.0
    assert f"at most ten seconds, at most {http.MOST_CONNECTIONS} connections" in PAGE
