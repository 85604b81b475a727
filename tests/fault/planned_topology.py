"""How is a printed script tried? An administrator runs it, and then an app does everything as a user with these rights."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.command_line import Ended, environment, unpoison

APP = """
import os
import signal

from unpoison import App, Backoff, Delivery

app = App(os.environ["SHOP_URL"], create=False)


def ship(order: dict, delivery: Delivery) -> None:
    if order["do"] == "retry" and delivery.attempt == 1:
        raise ConnectionError("away")
    if order["do"] == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if order["do"] == "kill":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    if order["do"] == "fail":
        raise ValueError("poison")


for source in {sources!r}:
    app.consumer(source, max_attempts=2, backoff=Backoff.exponential(base=0.1, max=0.2), concurrency=1)(ship)
"""
TOOLS_TIMEOUT = 240


@dataclass
class Shop:
    """An app in a folder. `url` is what the app's own user has."""

    folder: Path
    sources: tuple[str, ...] = ("orders", "mail")

    def __post_init__(self) -> None:
        (self.folder / "shop.py").write_text(APP.format(sources=self.sources))

    def plan(self, url: str, *options: str) -> Ended:
        ended = unpoison("plan-topology", "shop:app", *options, cwd=self.folder, SHOP_URL=url)
        assert ended.code == 0, ended.err
        return ended

    def do(self, url: str, *arguments: str, code: int | None = 0) -> Ended:
        ended = unpoison(*arguments, cwd=self.folder, SHOP_URL=url, UNPOISON_CREATE="false")
        assert code is None or ended.code == code, f"{arguments}: {ended.code}\n{ended.text}\n{ended.err}"
        return ended

    def publish(self, url: str, source: str, *does: str, delay: str = "0s") -> None:
        bodies = [json.dumps({"do": each}) for each in does]
        self.do(url, "publish", url, source, *bodies, "--delay", delay)

    def drain(self, url: str) -> str:
        """Run until nothing is left, as a supervisor would: a consumer that was killed is started again."""
        told = ""
        for _ in range(6):
            ended = self.do(url, "run", "shop:app", "--until-empty", code=None)
            told += ended.err
            if ended.code != -9:
                assert ended.code == 0, told
                return told
        raise AssertionError(told)

    def letters(self, url: str, source: str) -> list[dict[str, object]]:
        return self.do(url, "dlq", "ls", "--app", "shop:app", "--source", source, "--json").json

    def uses_everything(self, url: str, last: str = "kill") -> None:
        """Publish, delay, consume, retry, crash, lose the consumer (unless `last` is "well"), look, replay, discard, purge."""
        first, *rest = self.sources
        self.publish(url, first, "well", "fail", "retry", "die", last)
        self.publish(url, first, "well", delay="0.2s")
        for source in rest:
            self.publish(url, source, "fail")
        self.drain(url)
        dead = {json.loads(each["body"])["do"]: each["id"] for each in self.letters(url, first)}
        assert sorted(dead) == sorted({"die", "fail", last} - {"well"})
        assert [len(self.letters(url, source)) for source in rest] == [1] * len(rest)
        target = ("--app", "shop:app", "--source", first)
        self.do(url, "dlq", "replay", dead["fail"], *target)
        self.do(url, "dlq", "discard", dead["die"], *target)
        self.drain(url)
        assert sorted(json.loads(each["body"])["do"] for each in self.letters(url, first)) == sorted({"fail", last} - {"well"})
        self.do(url, "dlq", "purge", "--yes", *target)
        assert self.letters(url, first) == []


def run_script(script: str, folder: Path, **variables: str) -> str:
    """As an administrator does, in sh. Gives what it wrote."""
    path = folder / "create.sh"
    path.write_text(script)
    ended = subprocess.run(
        ["sh", str(path)],
        capture_output=True,
        text=True,
        env=environment(**variables),
        timeout=TOOLS_TIMEOUT,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{script}"
    return ended.stdout + ended.stderr


def with_programs(*folders: str) -> str:
    """The PATH with these folders first."""
    return os.pathsep.join([*folders, os.environ["PATH"]])
