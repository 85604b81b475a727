import os
import subprocess
import sys

from tests.e2e.command_line import bezoar


def test_the_demo_accounts_for_every_order(tmp_path):
    ended = bezoar("demo", "--json", cwd=tmp_path, TMPDIR=str(tmp_path))
    told = ended.json
    assert ended.code == 0
    assert told["published"] == 20 == told["done"] + told["dead"] + told["discarded"] + told["waiting"]
    assert (told["done"], told["dead"], told["discarded"], told["lost"]) == (15, 4, 1, 0)
    assert sorted(letter["classification"] for letter in told["dead_letters"]) == ["bug", "invalid", "invalid", "transient"]


def test_what_the_demo_suggests_works(tmp_path):
    shown = bezoar("demo", cwd=tmp_path, TMPDIR=str(tmp_path)).text
    assert "published 20 = done 15 + dead 4 + discarded 1 + waiting 0, lost 0\n" in shown
    commands = shown.partition("Try next:")[2]
    assert commands.count("  bezoar ") == 3
    script = commands.replace("replay --all", "replay --all --yes")
    ended = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=_with_bezoar(tmp_path), check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "Replayed 4 dead letters." in ended.stdout
    assert "orders  0 done, 4 dead" in ended.stdout


def test_a_demo_removes_the_file_of_the_one_before_unless_it_was_to_be_kept(tmp_path):
    kept = bezoar("demo", "--keep", "--json", cwd=tmp_path, TMPDIR=str(tmp_path)).json["url"]
    first = bezoar("demo", "--json", cwd=tmp_path, TMPDIR=str(tmp_path)).json["url"]
    second = bezoar("demo", "--json", cwd=tmp_path, TMPDIR=str(tmp_path)).json["url"]
    there = sorted(f"sqlite:///{file}" for file in tmp_path.glob("bezoar-demo-*/shop.db"))
    assert first not in there
    assert there == sorted([kept, second])


def _with_bezoar(folder):
    """An environment in which `bezoar` is the one under test, installed or not."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "bezoar"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bezoar "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
