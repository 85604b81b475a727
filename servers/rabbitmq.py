"""RabbitMQ, twice: the version of this machine's Debian (3.10 on Debian 12) and a current one (4.3), which behave differently."""

import base64
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import PurePosixPath
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from servers.errors import ServerFailed
from servers.places import DebianRoot, Machine
from servers.ports import greets
from servers.processes import Process
from servers.server import Entry, Server


class RabbitMQ(Server):
    ready_within = 120.0
    # Version 3.10 takes six seconds for an orderly stop.
    leaves_nothing_when_killed = True

    @property
    def url(self) -> str:
        return self.given or f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def http_url(self) -> str:
        """The management API, with name and password."""
        if not self.given:
            return f"http://guest:guest@127.0.0.1:{self.ports['http']}"
        told = self.addresses.get(self.entry.variable.replace("_URL", "_HTTP_URL"))
        given = urlsplit(self.given)
        return told or f"http://{given.username or 'guest'}:{given.password or 'guest'}@{given.hostname}:15672"

    def prepare(self) -> None:
        for name in ("home", "log", "data"):
            (self.folder / name).mkdir()
            self.hand_over(self.folder / name)
        self.write("plugins", "[rabbitmq_management,rabbitmq_shovel].\n")
        self.write("env.conf", "")

    def configure(self, settings: Mapping[str, str]) -> None:
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": str(self.ports["http"]),
            "disk_free_limit.absolute": "50MB",
            "vm_memory_high_watermark.absolute": "2GiB",
            "log.console": "true",
            "log.file": "false",
            **settings,
        }
        self.write("rabbitmq.conf", "".join(f"{name} = {value}\n" for name, value in lines.items()))

    def commands(self) -> dict[str, list[str]]:
        # Started by us, epmd can be ended by us. Started by RabbitMQ it would stay behind, on the port that everybody shares.
        epmd = self.entry.place.find("/usr/bin/epmd", "/usr/lib/erlang/bin/epmd", "/usr/local/bin/epmd") or "epmd"
        return {
            "epmd": [epmd, "-port", str(self.ports["epmd"]), "-address", "127.0.0.1"],
            "server": [self._program("rabbitmq-server")],
        }

    def environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            **super().environment(),
            "HOME": f"{folder}/home",
            "RABBITMQ_NODENAME": "unpoison@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.ports["distribution"]),
            "ERL_EPMD_PORT": str(self.ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": f"{folder}/log/erl_crash.dump",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/env.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_LOG": "-color",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def answers(self) -> bool:
        # The listeners of both open late; this page, the last of all, needs everything else.
        if not greets(self.port, b"AMQP\x00\x00\x09\x01", b"\x01"):
            return False
        try:
            self.http("GET", "/api/overview")
        except (OSError, HTTPException, ServerFailed):
            return False
        self.server_process()
        return True

    def server_process(self) -> Process | None:
        """Erlang's process and not the shell around it, which passes no signal on."""
        with suppress(OSError, ValueError):
            pid = int((self.folder / "pid").read_text(encoding="ascii"))
            erlang = Process.of(pid)
            # The file of a killed server names an id that may be somebody else's by now: only a child of ours is ours.
            known = self.processes
            if erlang and erlang != known.get("erlang") and erlang in known["server"].family():
                self.remember("erlang", erlang)
        return self.processes.get("erlang")

    def ctl(self, *arguments: str, timeout: float = 60) -> str:
        """rabbitmqctl with these arguments; gives its output."""
        return self.run([self._program("rabbitmqctl"), *arguments], timeout)

    def http(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the management API; gives the decoded answer, None when it is empty."""
        address = urlsplit(self.http_url)
        login = base64.b64encode(f"{unquote(address.username or '')}:{unquote(address.password or '')}".encode()).decode()
        request = Request(
            f"http://{address.hostname}:{address.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        try:
            with urlopen(request, timeout=30) as answer:
                content = answer.read()
        except HTTPError as error:
            with error:
                raise ServerFailed(f"{method} {path} gave {error.code}: {error.read().decode(errors='replace')}") from error
        return json.loads(content) if content else None

    def version(self) -> str:
        return str(self.http("GET", "/api/overview")["rabbitmq_version"])

    def fresh(self) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        given = urlsplit(self.url)
        self.http("PUT", f"/api/vhosts/{name}", {})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.http("PUT", f"/api/permissions/{name}/{given.username}", everything)
        return given._replace(path=f"/{name}").geturl()

    def _program(self, name: str) -> str:
        found = self.entry.place.find(*PROGRAMS) or PROGRAMS[0]
        return str(PurePosixPath(found).with_name(name))


# Not the ones in /usr/sbin: they change the user and the folder.
PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server")
PORTS = ("main", "http", "distribution", "epmd")
RABBITMQ = Entry("rabbitmq", "UNPOISON_TEST_RABBITMQ_URL", Machine(("rabbitmq-server",), PROGRAMS), RabbitMQ, PORTS)
RABBITMQ_4 = Entry("rabbitmq-4", "UNPOISON_TEST_RABBITMQ_4_URL", DebianRoot("forky", ("rabbitmq-server",)), RabbitMQ, PORTS)
