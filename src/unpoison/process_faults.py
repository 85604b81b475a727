"""Does an exception speak against the process it was raised in, rather than against the message?

Memory or descriptors that are used up, a descriptor that somebody else closed, an interpreter that contradicts itself: an
earlier message may have caused that. Such a failure is looked at again in a fresh worker before it convicts anybody.
"""

import errno

CHAIN_LIMIT = 10

_ERRNOS = {errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOTSOCK}

_TEXTS = (
    "can't start new thread",
    "can't allocate lock",
    "cannot schedule new futures after",  # an executor that was shut down, of the handler's own or of its event loop
    "Event loop is closed",
    "Executor shutdown has been called",
)
"""How Python's own RuntimeErrors begin that tell of a used-up or shut-down process."""


def blames_process(error: BaseException) -> bool:
    """Looks at the exception and at what it was raised from. Never raises, whatever the exception does."""
    try:
        return any(_is_fault(one) for one in _chain(error))
    except BaseException:  # user code may raise anything, even from an attribute
        return False


def _is_fault(error: BaseException) -> bool:
    kind = type(error)
    if issubclass(kind, MemoryError | SystemError):
        return True
    if issubclass(kind, OSError):
        return getattr(error, "errno", None) in _ERRNOS
    return kind is RuntimeError and str(error).startswith(_TEXTS)


def _chain(error: BaseException) -> list[BaseException]:
    """An exception, and what it was raised from or while handling: clients wrap what the system told them."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and len(chain) < CHAIN_LIMIT and one not in chain:
        chain.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return chain
