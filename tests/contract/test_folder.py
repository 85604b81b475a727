"""The adapter that CONTRIBUTING shows how to write keeps its promises. Those not listed here are in test_folder_all.py."""

import pytest

from tests.contract.folder_lab import FolderLab, visibility_for
from tests.contract.labs import waits_for_takeover
from unpoison.testing.contract import dead_letters, retrying, unwritable

PROMISES = {name: promise for topic in (retrying, dead_letters, unwritable) for name, promise in vars(topic).items()}
globals().update({name: each for name, each in PROMISES.items() if name.startswith("test_") and not waits_for_takeover(name)})


@pytest.fixture
def lab(request, folder):
    with FolderLab(folder, visibility_for(request.node.name)) as lab:
        yield lab
