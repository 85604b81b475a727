"""Turns a decorated function into a consumer. All its options are checked here, at start-up."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from unpoison.body.guard import decoder, key_reader
from unpoison.body.signature import check_not_generator, is_coroutine_function, name_of, payload_annotation
from unpoison.control.options import Admission, Breaker, ControlOptions
from unpoison.decide.options import ConsumerOptions, Default, Settings, check_isolation, check_tombstones
from unpoison.decide.policy import (
    ErrorClassifier,
    OnDLQ,
    OnFailure,
    OnRetry,
    PoisonPillHandler,
    Policy,
    check_backoff,
    check_callable,
)
from unpoison.errors import ConfigError, seconds
from unpoison.model.backoff import Backoff, Limits
from unpoison.model.message import DEPENDENCY_LIMIT
from unpoison.worker.call import Call, Registration

ASYNC_CONCURRENCY = 32


def register(
    settings: Settings,
    source: str,
    function: Callable[..., Any],
    *,
    max_attempts: int | None,
    backoff: Backoff | None,
    timeout: float | timedelta | None,
    schema: Any,
    classify: ErrorClassifier | None,
    policies: Mapping[type[BaseException], Policy] | None,
    key_from: str | None,
    tombstones: str,
    depends_on: str | None,
    breaker: Breaker | None,
    budget: float | None,
    admission: Admission | None,
    concurrency: int | None,
    threads: int,
    isolation: str | None,
    max_age: float | timedelta | None,
    on_dlq: OnDLQ | None,
    on_retry: OnRetry | None,
    on_failure: OnFailure | None,
    handler: PoisonPillHandler | None,
) -> Registration:
    """Check everything about a consumer and put it in order."""
    check_source(source)
    backoff = None if isinstance(backoff, Default) else backoff
    policy = _policy(
        source,
        handler,
        max_attempts=max_attempts,
        classify=classify,
        policies=policies,
        backoff=backoff,
        max_age=max_age,
        on_dlq=on_dlq,
        on_retry=on_retry,
    )
    _check_functions(source, function, on_failure)
    annotation, wants_delivery = payload_annotation(function)
    limit = None if timeout is None else seconds(timeout, f"Consumer {source!r}: timeout")
    decode = decoder(annotation, schema, max_body=settings.max_body, max_depth=settings.max_depth)
    if key_from is not None:
        key_reader(key_from, source)
    is_async = is_coroutine_function(function)
    options = ConsumerOptions(
        source=source,
        limits=_limits(policy, backoff),
        timeout=limit,
        concurrency=_concurrency(source, concurrency, is_async),
        threads=_threads(source, threads, is_async),
        isolation=check_isolation(isolation, source, is_async=is_async, is_shared=not settings.url.startswith("memory:")),
        key_from=key_from,
        tombstones=check_tombstones(tombstones, source),
        control=_control(source, depends_on, breaker, budget, admission),
        is_async=is_async,
        takes_delivery=wants_delivery,
    )
    return Registration(options, Call(function, decode, wants_delivery, policy, source, limit, depends_on, on_failure))


def _check_functions(source: str, function: Callable[..., Any], on_failure: OnFailure | None) -> None:
    check_not_generator(function, f"Consumer {source!r}: handler")
    check_callable(on_failure, "on_failure")


def _control(source: str, depends_on: object, breaker: object, budget: object, admission: object) -> ControlOptions:
    """What tells an outage, a throttle or a bad deploy from poison. None turns one of them off."""
    if depends_on is not None and not (isinstance(depends_on, str) and _is_one_line(depends_on)):
        raise ConfigError(
            f"Consumer {source!r}: depends_on must be the name of what every message needs, of {DEPENDENCY_LIMIT} characters at "
            f"most and without spaces around it, got {depends_on!r}. For example depends_on='billing'."
        )
    if breaker is not None and not isinstance(breaker, Breaker):
        raise ConfigError(f"Consumer {source!r}: breaker must be Breaker(…), or None to turn it off, got {breaker!r}.")
    if admission is not None and not isinstance(admission, Admission):
        raise ConfigError(f"Consumer {source!r}: admission must be Admission(…), or None to turn it off, got {admission!r}.")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget < math.inf):
        raise ConfigError(
            f"Consumer {source!r}: budget must be the share of retries in the traffic, got {budget!r}. A fifth is 0.2; None "
            f"turns it off."
        )
    return ControlOptions(breaker, budget, admission, depends_on)


def _is_one_line(name: str) -> bool:
    """Whether it is as a dependency is called wherever one is found: else an outage of it would have two names."""
    return 0 < len(name) <= DEPENDENCY_LIMIT and name.isprintable() and " ".join(name.split()) == name


def _policy(source: str, handler: PoisonPillHandler | None, **given: Any) -> PoisonPillHandler:
    """The PoisonPillHandler of this consumer: the user's own, or one made from the options."""
    limits = ("max_attempts", "max_age")  # for these None has a meaning: no limit
    set_here = {
        name: value for name, value in given.items() if not isinstance(value, Default) and (value is not None or name in limits)
    }
    options: dict[str, Any] = {{"classify": "error_classifier"}.get(name, name): value for name, value in set_here.items()}
    if handler is None:
        return PoisonPillHandler(**options)
    if not isinstance(handler, PoisonPillHandler):
        raise ConfigError(f"Consumer {source!r}: handler must be a PoisonPillHandler, got {handler!r}. Make one or leave it out.")
    clashes = [name for name in (*limits, "classify", "policies", "on_dlq", "on_retry") if name in set_here]
    if clashes:
        raise ConfigError(
            f"Consumer {source!r} has handler= together with {' and '.join(f'{name}=' for name in clashes)}, which the handler "
            f"decides itself. Set them on the PoisonPillHandler, or leave handler= out."
        )
    return handler


def _limits(policy: PoisonPillHandler, backoff: Backoff | None) -> Limits:
    """The handler's own limits, with the backoff of the consumer where it has one: the user's object stays as it is."""
    if backoff is None:
        return policy.limits
    check_backoff(backoff, "backoff")
    return replace(policy.limits, backoff=backoff)


def check_has_source(source: object) -> None:
    """Catch @app.consumer without parentheses: it would replace the function by a decorator and register nothing."""
    if callable(source):
        raise ConfigError(
            f"@app.consumer on {name_of(source)} has no parentheses, so it names no source and nothing would be consumed. "
            "Name the source that it handles: @app.consumer('orders')."
        )


def check_source(source: object) -> None:
    if not isinstance(source, str) or not source or source.strip() != source or not source.isprintable():
        raise ConfigError(f"A source must be a name without spaces around it, got {source!r}. For example 'orders'.")


def _concurrency(source: str, value: int | None, is_async: bool) -> int:
    if value is None:
        return ASYNC_CONCURRENCY if is_async else max(2, os.cpu_count() or 2)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"Consumer {source!r}: concurrency must be 1 or more, got {value!r}. For one message at a time use 1.")
    return value


def _threads(source: str, value: int, is_async: bool) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"Consumer {source!r}: threads must be 1 or more, got {value!r}. It is how many run inside each worker."
        )
    if is_async and value > 1:
        raise ConfigError(
            f"Consumer {source!r} is async and has threads={value}. Async handlers share one loop; use concurrency=."
        )
    return value
