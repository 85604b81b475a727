"""The adapter that CONTRIBUTING shows how to write keeps every promise, also when it is killed at any line."""

import pytest

from tests.contract import test_folder
from tests.contract.test_folder import lab as lab  # noqa: PLC0414 - a fixture
from unpoison.testing import contract

pytestmark = pytest.mark.long

globals().update({name: promise for name, promise in contract.PROMISES.items() if name not in vars(test_folder)})
