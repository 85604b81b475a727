"""How is a virtual host made wrong, and mended by the very commands that a finding gives?"""

import json
import shlex
import time
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

import pika

from unpoison.brokers import findings_for
from unpoison.brokers.rabbitmq.broker import RabbitMQBroker

OLD = "server-unmaintained"
"""Found on every server of version 3."""

PATIENCE = 30.0


def until(names, look):
    """Some things the server tells a few seconds late."""
    ends = time.monotonic() + PATIENCE
    while sorted(seen := look()) != sorted(names):
        assert time.monotonic() < ends, f"{sorted(seen)}, not {names}"
    return seen


class VirtualHost:
    """An empty one, on a real server."""

    def __init__(self, server):
        self.server = server
        self.bare = server.fresh()
        self.url = f"{self.bare}?management={server.http_url}"
        self.name = urlsplit(self.bare).path[1:]

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        """The server is shared: what is left here would slow down everybody else."""
        self.server.http("DELETE", f"/api/vhosts/{self.name}")

    def run_once(self, *sources, level=None):
        """Have unpoison start and end: it makes what it needs, and adopts what is there."""
        broker = RabbitMQBroker(self.url)
        broker.open(sources or ("orders",))
        if level is not None:
            broker.connections.ladder().ensure(level)
        broker.close()

    @contextmanager
    def channel(self, url=None):
        connection = pika.BlockingConnection(pika.URLParameters(url or self.bare))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def declare(self, queue, arguments=None, **flags):
        with self.channel() as channel:
            channel.queue_declare(queue, arguments=arguments, **{"durable": True, **flags})

    def http(self, method, path, body=None):
        return self.server.http(method, f"/api/{path.format(vhost=self.name)}", body)

    def policy(self, pattern, definition, *, operator=False, name="broad", priority=0, applies="queues"):
        kind = "operator-policies" if operator else "policies"
        body = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": applies}
        self.http("PUT", f"{kind}/{{vhost}}/{name}", body)

    def found(self, *sources, longest=None, url=None):
        """By name, without what is said of every old server."""
        seen = findings_for(url or self.url, sources, longest)
        return {finding.name: finding for finding in seen if finding.name != OLD}

    def mend(self, finding):
        """As a person would: everything after the sentence is copied into a shell."""
        for line in finding.fix.splitlines()[1:]:
            program, *words = shlex.split(line)
            if program == "rabbitmqctl":
                self.rabbitmqctl(*words)
            elif program == "curl":
                login, user, verb, method, url = words
                assert (login, user, verb) == ("-u", "guest", "-X")
                assert url.startswith(self.server.http_url.replace("guest:guest@", ""))
                self.server.http(method, urlsplit(url).path)
            else:
                assert line == "unpoison run module:app", line
                self.run_once()

    def rabbitmqctl(self, verb, *given):
        """What rabbitmqctl does, over HTTP: it takes seconds to start. test_the_commands_are_real runs the real one."""
        options, rest = {}, []
        words = list(given)
        while words:
            word = words.pop(0)
            if word in ("-p", "--priority", "--apply-to"):
                options[word] = words.pop(0)
            else:
                rest.append(word)
        assert options.pop("-p") == self.name
        getattr(self, f"_{verb}")(options, *rest)

    def _set_policy(self, options, name, pattern, definition, operator=False):
        self.policy(
            pattern,
            json.loads(definition),
            operator=operator,
            name=quote(name, safe=""),
            priority=int(options["--priority"]),
            applies=options["--apply-to"],
        )

    def _set_operator_policy(self, options, name, pattern, definition):
        self._set_policy(options, name, pattern, definition, operator=True)

    def _clear_operator_policy(self, _, name):
        self.http("DELETE", f"operator-policies/{{vhost}}/{quote(name, safe='')}")

    def _delete_queue(self, _, name, *flags):
        self.http("DELETE", f"queues/{{vhost}}/{quote(name, safe='')}")

    def _list_queues(self, *_):
        """Only for the person to look at."""

    _list_consumers = _list_queues

    def _set_permissions(self, _, user, configure, write, read):
        self.http("PUT", f"permissions/{{vhost}}/{user}", {"configure": configure, "write": write, "read": read})
