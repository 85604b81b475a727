"""What the tests of Kafka share."""

import pytest

from tests.contract.kafka_lab import KafkaLab


@pytest.fixture
def lab(tmp_path, kafka):
    with KafkaLab(kafka, tmp_path) as lab:
        yield lab
