"""ElasticMQ: a server that speaks the language of Amazon SQS, on the loopback address only.

It keeps messages in memory. With the setting `storage` it has them in a file too, synced before it answers: one that is killed
then loses nothing that it confirmed. Queues have no folders, so a fresh place is a prefix that no queue begins with yet. The
address in UNPOISON_TEST_ELASTICMQ_URL may be that of Amazon's own: sqs://?region=eu-west-1, with credentials where the AWS tools
look.
"""

import uuid
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import botocore.session

from servers.maven import Jars, java
from servers.server import Entry, Server

VERSION = "1.7.1"
# Enough for a test, and a compiler that starts quickly: it lives for minutes.
JAVA_OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
REGION = "eu-west-1"


class SQS(Server):
    """What every server with this language has in common."""

    leaves_nothing_when_killed = True

    @property
    def url(self) -> str:
        return self.given or f"sqs://test:test@?endpoint={self.endpoint}&region={REGION}"

    @property
    def endpoint(self) -> str | None:
        if self.given:
            return _option(self.given, "endpoint")
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            with urlopen(f"{self.endpoint}/", timeout=5):
                return True
        except HTTPError:
            return True  # it has no page there, and says so
        except (OSError, HTTPException):
            return False

    def client(self) -> Any:
        """For a test to look with."""
        given = urlsplit(self.url)
        login = {"aws_access_key_id": given.username, "aws_secret_access_key": given.password} if given.username else {}
        region = _option(self.url, "region")
        return botocore.session.Session().create_client("sqs", region_name=region, endpoint_url=self.endpoint, **login)

    def fresh(self) -> str:
        """A prefix of its own for every queue."""
        return f"{self.url}&prefix=t{uuid.uuid4().hex[:10]}-"


def _option(url: str, name: str) -> str | None:
    found = parse_qs(urlsplit(url).query).get(name)
    return found[0] if found else None


class ElasticMQ(SQS):
    def prepare(self) -> None:
        (self.folder / "data").mkdir()
        self.hand_over(self.folder / "data")

    def configure(self, settings: Mapping[str, str]) -> None:
        """`storage` is a setting of ours; the others are lines of the configuration."""
        lines = [
            'include classpath("application.conf")',
            f'rest-sqs {{ bind-hostname="127.0.0.1", bind-port={self.port}, sqs-limits=strict }}',
            f'node-address {{ protocol=http, host="127.0.0.1", port={self.port}, context-path="" }}',
            "rest-stats { enabled=false }",
            *(f"{name} = {value}" for name, value in settings.items() if name != "storage"),
        ]
        if "storage" in settings:
            place = f'driver-class="org.h2.Driver", uri="jdbc:h2:{self.folder}/data/h2;WRITE_DELAY=0", username="", password=""'
            lines += [f"messages-storage {{ enabled=true, {place} }}"]
            lines += [f'queues-storage {{ enabled=true, path="{self.folder}/data/queues.conf" }}']
        self.write("elasticmq.conf", "".join(f"{line}\n" for line in lines))

    def commands(self) -> dict[str, list[str]]:
        jars = self.entry.place.find() or ""
        options = [f"-Dconfig.file={self.folder}/elasticmq.conf", "-cp", jars]
        return {"server": [java(), *JAVA_OPTIONS, *options, "org.elasticmq.server.Main"]}

    def version(self) -> str:
        # The protocol does not tell; a given one is whatever it is.
        return "unknown" if self.given else VERSION


ARTIFACTS = (f"org.elasticmq:elasticmq-server_3:{VERSION}",)
ELASTICMQ = Entry("elasticmq", "UNPOISON_TEST_ELASTICMQ_URL", Jars(ARTIFACTS), ElasticMQ)
