"""The handlers whose tracebacks are recorded. Any Python from 3.11 on can run it; unpoison is not needed."""

# ruff: noqa: A002, B007, B904, F401, F821, PLC0415
# mypy: ignore-errors
# fmt: off

import asyncio
import contextlib
import functools
import json
import threading
from concurrent.futures import ThreadPoolExecutor


class OutOfStock(Exception):
    pass


class Order:
    def __init__(self, id):
        self.id, self.total = id, 3

    def ship(self, address):
        return address


def checked(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


def missing_key(n):
    return {"id": n}["total"]


def missing_attribute(n):
    return Order(n).totl


def unknown_name(n):
    return totl(n)


def unknown_module(n):
    import jsson


def unknown_import(n):
    from json import lods


def wrong_arguments(n):
    return Order(n).ship()


def unset_local(n):
    if n < 0:
        total = 1
    return total


def unhashable(n):
    return {[n]: 1}


def wrong_sum(n):
    return "total: " + n


def subscripted_none(n):
    order = None
    return (order["lines"][n]
            ["total"])


def divided(n):
    return n / 0.0


def in_comprehension(n):
    return [int(each) for each in ("1", f"x{n}")]


def in_nested_comprehension(n):
    return {row: [int(each) for each in (f"y{n}",)] for row in (1,)}


def in_generator(n):
    return sum(int(each) for each in (f"x{n}",))


@checked
def in_decorated(n):
    raise OutOfStock(f"item {n} is out of stock")


def in_lambda(n):
    return sorted([n], key=lambda each: each.rank)


@contextlib.contextmanager
def transaction():
    yield


def in_context(n):
    with transaction():
        raise OutOfStock(f"item {n} is out of stock")


def body_not_json(n):
    return json.loads("[" + " " * n)


def not_text(n):
    return (b" " * n + b"\xff").decode()


def endless(n):
    return endless(n + 1)


def even(n):
    return odd(n + 1)


def odd(n):
    return even(n + 1)


def mutual(n):
    return odd(n) if n % 2 else even(n)


def down(n):
    return down(n - 1) if n else missing_key(n)


def wrapped(n):
    try:
        missing_key(n)
    except KeyError as error:
        raise OutOfStock(f"order {n}") from error


def while_handling(n):
    try:
        missing_key(n)
    except KeyError:
        raise OutOfStock(f"order {n}")


def with_a_note(n):
    try:
        missing_key(n)
    except KeyError as error:
        error.add_note(f"in order {n}")
        error.add_note('  File "elsewhere.py", line 3, in elsewhere')
        raise


async def one(n):
    await asyncio.sleep(0)
    return missing_key(n)


async def both(n):
    async with asyncio.TaskGroup() as group:
        for each in range(n % 3 + 2):
            group.create_task(one(each))


def in_task_group(n):
    asyncio.run(both(n))


def in_nested_group(n):
    raise ExceptionGroup(
        f"order {n}", [OutOfStock(f"item {n}"), ExceptionGroup("inner", [ValueError(f"line {n}"), KeyError("total")])]
    )


def in_coroutine(n):
    asyncio.run(one(n))


async def threaded(n):
    await asyncio.to_thread(missing_key, n)


def in_asyncio_thread(n):
    asyncio.run(threaded(n))


def in_pool(n):
    with ThreadPoolExecutor() as pool:
        pool.submit(missing_key, n).result()


def in_thread(n):
    found = []

    def work():
        try:
            missing_key(n)
        except KeyError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise found[0]


def of_a_class_made_for_it(n):
    raise type(f"Order{n}Failed", (Exception,), {})(f"order {n}")


def without_text(n):
    raise OutOfStock


def in_many_lines(n):
    raise OutOfStock(f"order {n} of customer 'C-{n}'")


async def in_async_generator_of(n):
    for each in range(2):
        yield missing_key(n)


async def consume(n):
    async for _ in in_async_generator_of(n):
        pass


def in_async_generator(n):
    asyncio.run(consume(n))
