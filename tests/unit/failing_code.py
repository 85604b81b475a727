"""Code of users that fails, in the ways that the tables of fingerprints are about."""

import asyncio
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import botocore.exceptions
import msgspec
import psycopg
import pydantic
import pymysql
import sqlalchemy


class OutOfStock(Exception):
    pass


class NotShipped(Exception):
    pass


def refuse(text):
    raise ValueError(text)


def accept(text):
    raise ValueError(text)


def raises(error):
    raise error


def look_up(order, key):
    return order[key]


def look_up_too(order, key):
    return order[key]


def sold_out(item):
    raise OutOfStock(f"item {item}")


def wrap(action, *arguments):
    try:
        action(*arguments)
    except Exception as error:
        raise NotShipped("the order was not shipped") from error


def raise_from(cause):
    raise NotShipped("the order was not shipped") from cause


def clean_up(action, *arguments):
    try:
        action(*arguments)
    except Exception:
        raise NotShipped("the order was not shipped")  # noqa: B904 - what an oversight looks like


def in_coroutine(action, *arguments):
    async def run():
        await asyncio.sleep(0)
        action(*arguments)

    asyncio.run(run())


def in_thread(action, *arguments):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(action, *arguments).result()


def directly(action, *arguments):
    action(*arguments)


def descend(depth):
    return descend(depth - 1) if depth else look_up({}, "total")


def even(n):
    return odd(n + 1)


def odd(n):
    return even(n + 1)


def odd_or_even(n):
    return even(n) if n % 2 else odd(n)


def group(*errors):
    raise ExceptionGroup("several", errors)


def connect(host, port):
    raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")


def insert(value):
    with sqlite3.connect(":memory:") as base:
        base.execute("create table orders (id text primary key, mail text unique)")
        base.execute("insert into orders values (?, 'a')", (value,))
        base.execute("insert into orders values (?, 'b')", (value,))


def insert_mail(value):
    with sqlite3.connect(":memory:") as base:
        base.execute("create table orders (id text primary key, mail text unique)")
        base.execute("insert into orders values ('a', ?)", (value,))
        base.execute("insert into orders values ('b', ?)", (value,))


def through_sqlalchemy(*values):
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        connection.exec_driver_sql("create table orders (id text primary key, total int not null)")
        for value in values:
            statement = f"insert into orders values ('{value}', :total)"
            connection.execute(sqlalchemy.text(statement), {"total": len(str(value))})


def run_program(*command):
    subprocess.run(command, check=True)


def unique(constraint, column, value):
    detail = f"Key ({column})=({value}) already exists."
    raise psycopg.errors.UniqueViolation(f'duplicate key value violates unique constraint "{constraint}"\nDETAIL:  {detail}')


def not_null(column, row):
    text = f'null value in column "{column}" of relation "orders" violates not-null constraint'
    raise psycopg.errors.NotNullViolation(f"{text}\nDETAIL:  Failing row contains ({row}).")


def aws(code, operation, status=400):
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    raise botocore.exceptions.ClientError(answer, operation)


def duplicate(value, key):
    raise pymysql.err.IntegrityError(1062, f"Duplicate entry '{value}' for key '{key}'")


class Line(pydantic.BaseModel):
    sku: str
    quantity: int


class Basket(pydantic.BaseModel):
    lines: list[Line]
    prices: dict[str, int] = {}


class Item(msgspec.Struct):
    sku: str
    quantity: Annotated[int, msgspec.Meta(gt=0)]


class Cart(msgspec.Struct):
    items: list[Item]


@dataclass
class Address:
    street: str
    number: int


SCHEMA = {
    "type": "object",
    "required": ["id", "lines"],
    "properties": {"id": {"type": "integer"}, "lines": {"type": "array", "items": {"type": "object", "required": ["sku"]}}},
}


def basket(body):
    Basket.model_validate_json(body)


def struct(body):
    msgspec.json.decode(body, type=Cart)


def positive(order: dict) -> dict:
    if order["total"] < 0:
        raise ValueError(f"total {order['total']} is negative")
    return {}[f"order {order['id']} has no customer"]


GRPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.{0}
\tdetails = "order {1} at ipv4:127.0.0.1:{1}"
\tdebug_error_string = "UNKNOWN:Error received from peer  {{grpc_status:14, created_time:"2026-11-19T0{2}:00:00.5+00:00"}}"
>"""
