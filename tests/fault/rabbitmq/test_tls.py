"""RabbitMQ behind TLS: only the URL changes, and a certificate that does not fit is refused with the reason."""

from urllib.parse import quote, urlsplit

import pytest

from servers.ports import free_port
from tests.fault.certificates import make_certificate
from tests.servers_plugin import private_or_skip
from unpoison.app import App
from unpoison.brokers.rabbitmq.subscription import FULL
from unpoison.errors import BrokerUnavailable
from unpoison.testing import given
from unpoison.testing.running import drained

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def server():
    with private_or_skip("rabbitmq") as server:
        certificate, key = make_certificate(server.folder)
        server.hand_over(key)
        port = free_port(set())
        server.stop()
        server.start(
            {
                "listeners.ssl.default": f"127.0.0.1:{port}",
                "ssl_options.cacertfile": str(certificate),
                "ssl_options.certfile": str(certificate),
                "ssl_options.keyfile": str(key),
            }
        )
        vars(server).update(tls_port=port, certificate=certificate)
        yield server


def secured(server, **options: object) -> str:
    """The URL of an empty virtual host, over TLS."""
    parts = urlsplit(server.fresh())
    credentials = parts.netloc.rpartition("@")[0]
    query = f"?ssl_options={quote(str(options))}" if options else ""
    return f"amqps://{credentials}@127.0.0.1:{server.tls_port}{parts.path}{query}"


def test_messages_go_both_ways_also_when_they_fill_the_buffer(server):
    app, sizes = App(secured(server, ca_certs=str(server.certificate))), []
    body = b"x" * (FULL // 8)

    def handle(payload: bytes) -> None:
        sizes.append(len(payload))

    given.consumer(app, "orders", handle, schema=bytes)
    app.publish_many("orders", [body] * 30)
    drained(app)
    assert sizes == [len(body)] * 30
    app.close()


def test_a_certificate_that_nobody_vouches_for_is_refused_with_the_reason(server):
    app = App(secured(server))
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        app.publish("orders", 1)
