"""How is a function of the user's called that may be async?

Its coroutine is run to its end before the call returns. All calls of one worker share one event loop, so that what one of them
opens (a pool, a session) can be used and closed by the others.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


class Awaiting:
    """An event loop that runs only while a coroutine is awaited. Made when it is first needed: importing asyncio takes 60 ms."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> "asyncio.AbstractEventLoop":
        if self._loop is None:
            import asyncio  # noqa: PLC0415 - see above

            self._loop = asyncio.new_event_loop()
        return self._loop

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call the function, and await what it returns if that can be awaited."""
        result = function(*arguments)
        if not isinstance(result, Awaitable):
            return
        try:
            self.loop().run_until_complete(result)
        finally:
            if isinstance(result, Coroutine):
                result.close()  # the loop may have refused it, being closed: Python would warn that nobody has awaited it

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()
