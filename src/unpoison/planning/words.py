"""How are rates, shares and times said to a person?"""

from unpoison.backoff import Backoff

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def number(value: float, digits: int = 3) -> str:
    """The digits that count, and all before the point: 2,500; 52.6; 0.125. Less than a thousandth is said to be that."""
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.{digits}g}"


def per_second(value: float) -> str:
    return f"{number(value)}/s"


def percent(share: float) -> str:
    return f"{number(share * 100)} %"


def lasting(seconds: float, digits: int = 3) -> str:
    """0.35 s, 15 s, 2 min, 1.5 h: the largest unit of which there is one at least."""
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{number(seconds / size, digits)} {unit}"


def described(backoff: Backoff) -> str:
    """A backoff in words: exponential, base 1 s, max 1 min, full jitter."""
    if backoff.delays:
        kind = f"delays {', '.join(map(lasting, backoff.delays))}"
    elif backoff.max == 0:
        return "no delay"
    elif backoff.base == backoff.max:
        kind = f"always {lasting(backoff.base)}"
    else:
        factor = "" if backoff.factor == 2 else f", factor {number(backoff.factor)}"
        kind = f"exponential, base {lasting(backoff.base)}, max {lasting(backoff.max)}{factor}"
    return f"{kind}, {'full' if backoff.jitter else 'no'} jitter"
