import pytest


def pytest_collection_modifyitems(items):
    """A batch that fails is printed whole, and some of its values are as long as a broker takes them: that is not an error."""
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning"))
