"""Which failures are apart? Each row has as many groups as failures."""

import sys

import pymysql
import pytest
import sqlalchemy

from tests.unit.failing_code import (
    GRPC,
    SCHEMA,
    Address,
    Basket,
    Cart,
    OutOfStock,
    accept,
    aws,
    basket,
    descend,
    directly,
    duplicate,
    group,
    in_thread,
    insert,
    insert_mail,
    look_up,
    look_up_too,
    not_null,
    odd_or_even,
    positive,
    raise_from,
    raises,
    refuse,
    run_program,
    sold_out,
    unique,
    wrap,
)
from tests.unit.fingerprinting import handler, letter, misfit, of
from unpoison.model.fingerprint import of_letter

APART = {
    "texts that say something else": lambda: [of(refuse, text) for text in ("the order is empty", "the order is too old", "")],
    "functions": lambda: [of(refuse, "no"), of(accept, "no")],
    "handlers that call one function": lambda: [
        of(directly, look_up, {}, "id"),
        of(in_thread, look_up, {}, "id"),
        of(look_up, {}, "id"),
    ],
    "files": lambda: [
        of(handler("def ship(order):\n    return order['total']\n", path), {}) for path in ("/app/shop.py", "/app/stock.py")
    ],
    "packages": lambda: [
        of(handler("def ship(order):\n    return order['total']\n", f"/app/{package}/__init__.py"), {})
        for package in ("orders", "stock")
    ],
    "types": lambda: [of(raises, kind("no")) for kind in (ValueError, TypeError, OutOfStock, type("Sold", (Exception,), {}))],
    "keys that are names": lambda: [of(look_up, {}, key) for key in ("total", "customer", "ship_to")],
    "a name and an id as key": lambda: [of(look_up, {}, key) for key in ("total", "4711")],
    "keys that are numbered names": lambda: [of(look_up, {}, key) for key in ("line1", "street2")],
    "KeyErrors that are sentences": lambda: [of(raises, KeyError(f"no {what} for item 17")) for what in ("price", "customer")],
    "attributes": lambda: [of(lambda name=name: getattr(None, name)) for name in ("total", "lines")],
    "undefined names": lambda: [of(handler(f"def ship(order):\n    return {name}\n"), {}) for name in ("totl", "ordr")],
    "modules that are missing": lambda: [
        of(handler(f"def ship(order):\n    import {name}\n"), {}) for name in ("jsson", "reqests")
    ],
    "arguments that are missing": lambda: [
        of(handler(f"def ship(order):\n    (lambda *, {name}: 1)()\n"), {}) for name in ("total", "customer")
    ],
    "unique constraints": lambda: [of(unique, name, "id", 1) for name in ("orders_pkey", "orders_mail_key")],
    "columns that must not be null": lambda: [of(not_null, column, "1, null") for column in ("total", "customer")],
    "unique columns in SQLite": lambda: [of(directly, insert, "a"), of(directly, insert_mail, "a")],
    "keys in MySQL": lambda: [of(duplicate, 1, key) for key in ("orders.PRIMARY", "orders.mail")],
    "error codes of MySQL": lambda: [of(raises, pymysql.err.OperationalError(code, "no")) for code in (1205, 1213)],
    "error codes of MySQL through SQLAlchemy": lambda: [
        of(raises, sqlalchemy.exc.DBAPIError("select 1", {"id": 17}, pymysql.err.OperationalError(code, "it's gone")))
        for code in (1205, 1213)
    ],
    "error codes of AWS": lambda: [
        of(aws, code, "PutItem") for code in ("ThrottlingException", "AccessDeniedException", "404", "403")
    ],
    "operations of AWS": lambda: [of(aws, "AccessDenied", operation) for operation in ("PutItem", "GetItem")],
    "statuses of gRPC": lambda: [letter("grpc.RpcError", GRPC.format(code, 1, 1)) for code in ("UNAVAILABLE", "NOT_FOUND")],
    "statuses of HTTP in a text": lambda: [
        of(refuse, f"billing answered {status} to order 17") for status in (401, 403, 500, 503)
    ],
    "statuses in other words": lambda: [of(refuse, f"unexpected status code: {status}") for status in (400, 502)],
    "statuses that an exception shows as its first argument": lambda: [
        of(refuse, f"ConflictError({status}, 'conflict', {{'took': 17}})") for status in (404, 409)
    ],
    "statuses in a repr": lambda: [of(refuse, f"<Response [{status}]>") for status in (401, 503)],
    "SQLSTATEs": lambda: [of(refuse, f"ERROR: no (SQLSTATE {code})") for code in ("40001", "23505")],
    "codes of Oracle": lambda: [of(refuse, f"ORA-{code}: no") for code in ("00001", "12154")],
    "exit statuses": lambda: [of(run_program, sys.executable, "-c", f"exit({n})") for n in (2, 3)],
    "causes that were never raised": lambda: [
        of(raise_from, cause) for cause in (ValueError("a 1"), KeyError("a"), ValueError("b"))
    ],
    "causes of a wrapper": lambda: [
        of(wrap, look_up, {}, "total"),
        of(wrap, look_up, {}, "id"),
        of(wrap, look_up_too, {}, "total"),
        of(wrap, sold_out, 1),
    ],
    "a wrapper and its cause": lambda: [of(wrap, look_up, {}, "total"), of(directly, look_up, {}, "total")],
    "groups of other kinds": lambda: [
        of(group, *some) for some in ([ValueError("a")], [KeyError("b")], [ValueError("a"), KeyError("b")])
    ],
    "recursions": lambda: [of(descend, 10_000), of(odd_or_even, 1)],
    "sources of what has no place in the code": lambda: [
        letter(kind, "x", source=source)
        for kind in (
            "unpoison.Timeout",
            "unpoison.ConsumerVanished",
            "unpoison.AttemptsUsedUp",
            "unpoison.Interrupted",
            "nats.Unknown",
        )
        for source in ("orders", "payments")
    ],
    "fields in pydantic": lambda: [
        misfit(b, Basket) for b in (b'{"lines": [{"sku": "a"}]}', b'{"lines": [{"quantity": 1}]}', b'{"lines": 3}')
    ],
    "kinds in pydantic": lambda: [
        misfit(b, Basket)
        for b in (
            b'{"lines": [{"sku": "a"}]}',
            b'{"lines": [{"sku": "a", "quantity": "x"}]}',
            b'{"lines": [{"sku": "a", "quantity": 1.5}]}',
        )
    ],
    "fields and kinds in msgspec": lambda: [
        misfit(b, Cart)
        for b in (
            b"{}",
            b'{"items":[{"sku":"a"}]}',
            b'{"items":[{"sku":1}]}',
            b'{"items":[{"sku":"a","quantity":"x"}]}',
            b'{"items":[{"sku":"a","quantity":0}]}',
        )
    ],
    "fields and kinds in JSON Schema": lambda: [
        misfit(b, dict, SCHEMA)
        for b in (
            b"{}",
            b'{"id":1}',
            b'{"id":"a","lines":[]}',
            b'{"id":1,"lines":{}}',
            b'{"id":1,"lines":[{}]}',
            b'{"id":1,"lines":["a"]}',
        )
    ],
    "fields of a dataclass": lambda: [
        misfit(b, Address) for b in (b'{"street":"a"}', b'{"number":1}', b'{"street":"a","number":"x"}')
    ],
    "refusals of a function": lambda: [misfit(b, dict, positive) for b in (b'{"total":-1}', b"{}", b'{"total":1,"id":7}')],
    "rules of the guard": lambda: [
        misfit(b)
        for b in (b"x", b'"\xff"', b"[" * 30 + b"]" * 30, b" " * 20_000, b'{"a":18446744073709551616}', b'{"a":1e999}', b"[]")
    ],
    "fields in the handler": lambda: [
        of(basket, b) for b in ('{"lines": [{"quantity": 1}]}', '{"lines": [{"sku": "a"}]}', '{"lines": 1}')
    ],
    "sources of misfits": lambda: [misfit(b"x", source=source) for source in ("orders", "payments")],
    "a bug in an app that is installed as a package": lambda: [
        letter(
            "KeyError",
            "'total'",
            'Traceback (most recent call last):\n  File "/v/site-packages/shop/orders.py", line 3, in ship\n'
            f'  File "/v/site-packages/shop/prices.py", line 3, in {place}\n'
            '  File "/v/site-packages/client/api.py", line 3, in post\n',
        )
        for place in ("gross", "net")
    ],
    "errors in libraries alone": lambda: [
        letter(
            "KeyError",
            "'total'",
            f'Traceback (most recent call last):\n  File "/usr/lib/python3.12/json/{place}.py", line 3, in x\n',
        )
        for place in ("decoder", "encoder")
    ],
}


@pytest.mark.parametrize("name", APART)
def test_these_are_apart(name):
    letters = APART[name]()
    assert len(letters) > 1
    assert len({of_letter(one) for one in letters}) == len(letters), [(one.error_type, one.error[:200]) for one in letters]
