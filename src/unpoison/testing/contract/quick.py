"""The promises that every broker keeps, without those about kills at every line, which take long on a server (`killing`)."""

from unpoison.testing import contract
from unpoison.testing.contract import killing

PROMISES = {name: promise for name, promise in contract.PROMISES.items() if name not in vars(killing)}

globals().update(PROMISES)
__all__ = list(PROMISES)
