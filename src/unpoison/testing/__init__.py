"""Does an adapter keep unpoison's promises?

The suite is part of the package, so that authors of adapters can prove theirs. It needs pytest, a `Lab` that makes
a fresh broker and knows how to cause its faults, and two lines in a test module:

    import pytest
    from unpoison.brokers import ADAPTERS, Adapter
    from unpoison.testing import Lab
    from unpoison.testing.contract import *

    ADAPTERS["carrier-pigeon"] = Adapter("loft.broker", "PigeonBroker", "loft.letters", "PigeonLetters")

    class PigeonLab(Lab):
        ...

    @pytest.fixture
    def lab(tmp_path):
        with PigeonLab(f"carrier-pigeon://{tmp_path.name}", tmp_path) as lab:  # empty each time
            yield lab

What a promise asks of its lab beyond that, such as a takeover within a second or two, it says itself: in the fixture,
`traits_of(request.function)` gives its `Trait`.

A promise that needs what the broker's `capabilities` do not claim is skipped; nothing else is. The promises about kills
try a kill at every third line; with EVERY_KILL=1 in the environment at every line, each time it is passed, which takes
minutes.
"""

import sys

if pytest := sys.modules.get("pytest"):  # not loaded for its own sake: processes that only play a part in a promise start faster
    pytest.register_assert_rewrite("unpoison.testing.contract")  # before the promises are imported, or a failed one says nothing

from unpoison.testing.lab import Lab, Trait, traits_of

__all__ = ["Lab", "Trait", "traits_of"]
