"""Kafka keeps the promises about kills at every line."""

import pytest

from tests.contract.kafka_lab import KafkaLab
from unpoison.testing.contract.killing import *  # noqa: F403

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


class SweptLab(KafkaLab):
    """Closed between two kills, when nothing that was made for the last one is needed any more."""

    def close(self) -> None:
        super().close()
        self.delete()


@pytest.fixture
def lab(folder, kafka):
    with SweptLab(kafka, folder) as lab:
        yield lab
