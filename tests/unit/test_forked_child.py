"""What does a forked child of the tests leave alone?"""

import gc

from unpoison.testing.processes import Child, Gate


class Client:
    """Ending it in a process without its threads would take for ever."""

    def __init__(self, ended):
        self.itself, self.ended = self, ended

    def __del__(self):
        self.ended.open()


def test_garbage_of_the_test_runner_is_not_collected_in_the_child():
    ended = Gate("ended")
    gc.disable()
    try:
        Client(ended)
        with Child(gc.collect) as child:
            assert child.wait() == 0
        assert not ended.is_open()
    finally:
        gc.enable()
    gc.collect()
    assert ended.is_open(), "the tests themselves collect it"
