"""What the demo's handlers do must end the same way on a machine of any speed."""

import resource

from unpoison.cli.demo.shop import MEMORY, MIB, eat_memory
from unpoison.testing.processes import Child


def test_a_worker_that_eats_memory_is_refused_it_before_it_has_filled_any():
    """Filling it takes time: on a busy machine so much that the order was over its time limit instead."""

    def eat() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY + peak(), MEMORY + peak()))
        before = peak()
        try:
            eat_memory(None)
        except MemoryError:
            assert peak() - before < 4 * MIB
        else:
            raise AssertionError("nothing stopped it")

    with Child(eat) as child:
        assert child.wait() == 0


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
