"""Virtual hosts to be made wrong, empty or with a source in order."""

import pytest

from tests.doctor.rabbitmq_vhost import VirtualHost


@pytest.fixture
def vhost(rabbitmq):
    """On 3.10, with the source 'orders' in order."""
    with VirtualHost(rabbitmq) as vhost:
        vhost.run_once()
        yield vhost


@pytest.fixture
def empty(rabbitmq):
    with VirtualHost(rabbitmq) as vhost:
        yield vhost


@pytest.fixture
def vhost_4(rabbitmq_4):
    """On 4.3, with the source 'orders' in order."""
    with VirtualHost(rabbitmq_4) as vhost:
        vhost.run_once()
        yield vhost


@pytest.fixture
def empty_4(rabbitmq_4):
    with VirtualHost(rabbitmq_4) as vhost:
        yield vhost
