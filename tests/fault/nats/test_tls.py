"""NATS behind TLS: only the URL changes, and a certificate that does not fit is refused with the reason."""

import pytest

from tests.fault.certificates import make_certificate
from tests.servers_plugin import private_or_skip
from unpoison.app import App
from unpoison.brokers.nats.broker import NATSBroker
from unpoison.errors import BrokerUnavailable
from unpoison.testing import given
from unpoison.testing.running import drained

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server():
    with private_or_skip("nats") as server:
        certificate, key = make_certificate(server.folder)
        server.hand_over(key)
        server.stop()
        server.start({"tls": f'{{ cert_file: "{certificate}", key_file: "{key}" }}'})
        vars(server)["certificate"] = certificate
        yield server


def test_messages_go_both_ways(server):
    app, seen = App(f"tls://test:test@127.0.0.1:{server.port}?tls_ca={server.certificate}"), []
    given.consumer(app, "orders", seen.append)
    app.publish_many("orders", range(100))
    assert drained(app)["orders"].done == 100
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_a_certificate_that_nobody_vouches_for_is_refused(server, scheme):
    """Also by whoever asked for no TLS: the server wants it, and a password goes over the line."""
    broker = NATSBroker(f"{scheme}://test:test@127.0.0.1:{server.port}")
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate"):
        broker.open(["orders"])
    broker.close()
