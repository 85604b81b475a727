"""Which failures fall together? Most rows are failures of real code, whatever text they write."""

import json
import sys

import pytest

from tests.unit.failing_code import (
    GRPC,
    SCHEMA,
    Address,
    Basket,
    Cart,
    OutOfStock,
    basket,
    clean_up,
    connect,
    descend,
    directly,
    duplicate,
    group,
    insert,
    look_up,
    not_null,
    odd_or_even,
    positive,
    raises,
    refuse,
    run_program,
    sold_out,
    struct,
    through_sqlalchemy,
    unique,
    wrap,
)
from tests.unit.fingerprinting import crash_of, handler, letter, misfit, of
from unpoison.model.fingerprint import of_letter
from unpoison.model.traceback_text import CAUSED

OTHER_THREAD = 'Thread 0x00008f [pool-1] (most recent call first):\n  File "/app/stock.py", line 3 in wait\n\n'

TOGETHER = {
    "ids in the text": lambda: [of(refuse, f"order {n} of customer C-{n} is odd") for n in (1, 4711, 10**15)],
    "uuids": lambda: [
        of(refuse, f"no such order: {n}")
        for n in ("018f3c1e-7b1a-7cc0-98c4-dc0c0c07398f", "deadbeef-dead-beef-dead-beefdeadbeef")
    ],
    "hex and addresses of objects": lambda: [of(refuse, f"{object()} at {hex(n)}") for n in (1, 2**40)],
    "other objects' reprs": lambda: [
        of(refuse, f"cannot ship {look}") for look in (Address("Elm Street", 7), Address("Oak", 12))
    ],
    "times": lambda: [of(refuse, f"too late: {t}") for t in ("2026-11-19T05:30:00Z", "2026-01-02 03:04:05.678+01:00", "12:30")],
    "paths": lambda: [of(refuse, f"cannot read {p}") for p in ("/tmp/a/order.csv", "~/in.csv", "in/2026/a.csv", "C:\\in\\7.csv")],
    "mail addresses": lambda: [of(refuse, f"mail to {m} bounced") for m in ("ann@shop.example", "b.c+d@mail.example.org")],
    "quoted values": lambda: [
        of(refuse, f"unknown carrier {q}") for q in ("'fast'", '"slow and cheap"', "`x`", "“slow”", "'it's'", "''")
    ],
    "bytes": lambda: [of(refuse, f"bad header {b!r}") for b in (b"\x00\xff", b"it's", b"")],
    "long base64": lambda: [of(refuse, "bad blob " + b * 60) for b in ("QUJD0", "a/b9", "Zm9v+1")],
    "lists of any length": lambda: [of(refuse, f"missing: {v}") for v in ([1], [1, 2, 3], ["a", "b"], "4, 5", (1,))],
    "dicts": lambda: [of(refuse, f"bad order {d}") for d in ({"id": 1}, {"id": 2, "lines": [1, None]}, {})],
    "numbers of any form": lambda: [of(refuse, f"total is {v}") for v in (-1, 1.5, "1e-7", "1,234.50", "50%", "$3", "1_000")],
    "singular and plural": lambda: [of(refuse, f"{n} left") for n in ("1 item", "3 items")],
    "addresses of hosts": lambda: [
        of(refuse, f"no answer from {h}") for h in ("10.0.0.1:80", "db-7.shop.example:5432", "192.168.3.4")
    ],
    "hosts and ports that a client dials": lambda: [
        of(refuse, f"Error 111 connecting to {host}. Connection refused.")
        for host in ("redis:6379", "cache-b.internal:6380", "[::1]:6379")
    ],
    "URLs with other ids and hosts": lambda: [of(refuse, f"got {u}") for u in ("http://a.example/o/1?x=2", "https://b/o/2#z")],
    "SQL with literals": lambda: [
        of(refuse, f"select * from orders where id = {n} and name = '{n}' or id in ({n}, 2)") for n in (1, 22)
    ],
    "another language": lambda: [of(refuse, f"Bestellung „{n}“ für Kunde {n} fehlt") for n in (1, 22)],
    "another script": lambda: [of(refuse, f"用户 {n} 的订单 “{n}” 不存在") for n in (1, 22)],
    "a value that is cut": lambda: [of(refuse, "payload '" + c * n) for c, n in (("a b ", 2_000), ("x", 5_000))],
    "keys that are ids": lambda: [of(look_up, {}, k) for k in (17, "4711", "018f3c1e-7b1a-7cc0-98c4-dc0c0c07398f", (1, 2))],
    "keys that are numbered names": lambda: [of(look_up, {}, k) for k in ("line_1", "line_22")],
    "a KeyError that is a sentence": lambda: [of(raises, KeyError(f"no price for item {n}")) for n in (1, 2)],
    "JSON errors at other places": lambda: [of(json.loads, text) for text in ("[1,", "{'a'}", '{"a": nul}', "")],
    "bytes that are no text": lambda: [of(bytes.decode, b) for b in (b"\xff", b"abc\xfe", b"\xc3")],
    "ports of one host": lambda: [of(connect, "127.0.0.1", port) for port in (80, 54321)],
    "unique violations of one constraint": lambda: [of(unique, "orders_pkey", "id", v) for v in (1, "O'Neil", "a) and (b")],
    "not-null violations": lambda: [of(not_null, "total", row) for row in ("1, null, Ann", "2, null, Bob Miller, 2026-01-01")],
    "unique violations in SQLite": lambda: [of(insert, v) for v in ("a", "b")],
    "unique violations through SQLAlchemy": lambda: [of(through_sqlalchemy, v, v) for v in ("a", "bcd")],
    "duplicates in MySQL": lambda: [of(duplicate, v, "orders.PRIMARY") for v in (1, "a-b")],
    "timeouts of one handler": lambda: [letter("unpoison.Timeout", f"still running after {n} s") for n in (3, 300.5)],
    "a timeout with and without a stack": lambda: [
        letter("unpoison.Timeout", "still running after 3 s", stack) for stack in ("", '  File "/app/shop.py", line 3 in ship\n')
    ],
    "lost messages of one source": lambda: [
        letter("unpoison.ConsumerVanished", text) for text in ("", "ValueError: 1; KeyError: 2")
    ],
    "used-up ones of one source": lambda: [letter("unpoison.AttemptsUsedUp", text) for text in ("", "ValueError: 1")],
    "interrupted ones of one source": lambda: [letter("unpoison.Interrupted", "a planned stop cut it off")] * 2,
    "a moved line": lambda: [
        of(handler(f"{gap}def ship(order):\n    return order['total']\n"), {}) for gap in ("", "\n\n# a comment\n")
    ],
    "another folder": lambda: [
        of(handler("def ship(order):\n    return order['total']\n", path), {})
        for path in (
            "/app/shop.py",
            "/home/ann/work/shop.py",
            "C:\\work\\shop.py",
            "shop.py",
            "/srv/shop.pyz/shop.py",
            "/app/shop.pyc",
        )
    ],
    "recursion of any depth": lambda: [of(descend, depth) for depth in (1, 5, 31, 60, 900)],
    "endless recursion": lambda: [of(directly, descend, depth) for depth in (10_000, 10_007)],
    "endless recursion that begins in another function": lambda: [of(odd_or_even, n) for n in (1, 2)],
    "a wrapper of one cause": lambda: [of(wrap, look_up, {"id": n}, "total") for n in (1, 2)],
    "whatever was being handled": lambda: [of(clean_up, *what) for what in ((look_up, {}, "total"), (sold_out, 1))],
    "groups of one kind": lambda: [of(group, *(ValueError(f"line {n}") for n in range(many))) for many in (1, 2, 20)],
    "groups in another order": lambda: [
        of(group, *some) for some in ((ValueError("a"), KeyError("b")), (KeyError("b"), ValueError("a")))
    ],
    "classes made for one message": lambda: [of(raises, type(name, (Exception,), {})("no")) for name in ("Order17", "Order22")],
    "empty texts": lambda: [of(raises, OutOfStock()), of(raises, OutOfStock("")), of(raises, OutOfStock("  "))],
    "an AWS error after other retries": lambda: [
        of(refuse, f"An error occurred (ThrottlingException) when calling the PutItem operation (reached max retries: {n}): no")
        for n in (1, 4)
    ],
    "gRPC errors of one status": lambda: [
        letter("grpc._channel._InactiveRpcError", GRPC.format("UNAVAILABLE", n, n)) for n in (1, 2)
    ],
    "a program that fails alike": lambda: [of(run_program, sys.executable, "-c", f"exit(3) # {n} it's") for n in (1, "a b")],
    "pydantic in the handler": lambda: [
        of(basket, b) for b in ('{"lines": [{"quantity": 1}]}', '{"lines": [{"sku": "a", "quantity": 1}, {"quantity": 7}]}')
    ],
    "pydantic in the handler, with data that it cuts": lambda: [
        of(basket, json.dumps({"prices": {"a": 1}, note: n}))
        for note, n in (("it's late " * 20, 1), ("x", "'" + "a b " * 50), ("y", 1))
    ],
    "msgspec in the handler": lambda: [
        of(struct, b) for b in ('{"items": [{"sku": 1}]}', '{"items": [{"sku": "a", "quantity": 1}, {"sku": 2}]}')
    ],
    "pydantic at any place of a list": lambda: [
        misfit(b, Basket)
        for b in (
            b'{"lines": [{"sku": "a", "quantity": "x"}]}',
            b'{"lines": [{"sku": "a", "quantity": 1}, {"sku": "b", "quantity": "y, z"}]}',
        )
    ],
    "pydantic under any id": lambda: [
        misfit(b, Basket) for b in (b'{"lines": [], "prices": {"17": "x"}}', b'{"lines": [], "prices": {"4711": "y"}}')
    ],
    "msgspec at any place of a list": lambda: [
        misfit(b, Cart)
        for b in (
            b'{"items": [{"sku": "a", "quantity": "x"}]}',
            b'{"items":[{"sku":"a","quantity":1},{"sku":"b","quantity":"y"}]}',
        )
    ],
    "JSON Schema at any place of a list": lambda: [
        misfit(b, dict, SCHEMA) for b in (b'{"id":1,"lines":[{}]}', b'{"id":2,"lines":[{"sku":1},{"a":"is too long"}]}')
    ],
    "JSON Schema, other values": lambda: [
        misfit(b, dict, SCHEMA) for b in (b'{"id":"a","lines":[]}', b'{"id":{"x":"it\'s"},"lines":[]}')
    ],
    "JSON Schema, with data that is cut": lambda: [
        misfit(json.dumps({"id": id_, "lines": []}).encode(), dict, SCHEMA)
        for id_ in ("it's " * 300, [*range(900)], {"a b": "c d " * 200}, "x")
    ],
    "a function as schema": lambda: [misfit(b, dict, positive) for b in (b'{"total":-1}', b'{"total":-2.5}')],
    "bodies that are not JSON": lambda: [misfit(b) for b in (b"", b"hello", b'{"a":1', b'{"a":1}}')],
    "bodies too large": lambda: [misfit(b"[" + b" " * n + b"]") for n in (20_000, 30_000)],
    "bodies in no UTF-8": lambda: [misfit(b) for b in (b'"\xff"', b"\xef\xbb\xbf{}")],
    "unreadable envelopes": lambda: [
        letter("unpoison.Unreadable", f"It was not started: reading its envelope raised ValueError: bad byte {n}") for n in (1, 2)
    ],
    "our own frames around the handler": lambda: [
        letter(
            "KeyError",
            "'total'",
            f'Traceback (most recent call last):\n{ours}  File "/app/shop.py", line 3, in ship\nKeyError: 1\n',
        )
        for ours in ("", '  File "/v/lib/python3.12/site-packages/unpoison/worker/call.py", line 9, in run\n')
    ],
    "another version of a library": lambda: [
        letter(
            "KeyError",
            "'total'",
            'Traceback (most recent call last):\n  File "/app/shop.py", line 3, in ship\n'
            + "".join(f'  File "/v/lib/python3.12/site-packages/client/{part}.py", line 9, in {part}\n' for part in parts),
        )
        for parts in (("api", "send"), ("api", "wrapped", "post"))
    ],
    "a library that is raised from something else inside": lambda: [
        letter(
            "client.Failed",
            "no answer",
            f'Traceback (most recent call last):\n  File "/v/site-packages/client/io.py", line 1, in io\n{cause}\n\n{CAUSED}\n\n'
            'Traceback (most recent call last):\n  File "/app/shop.py", line 3, in ship\n'
            '  File "/v/site-packages/client/api.py", line 3, in post\nclient.Failed: no answer\n',
        )
        for cause in ("OSError: 1", "inner.Broken: x")
    ],
    "a script and a module": lambda: [letter(f"{module}OutOfStock", "x") for module in ("__main__.", "__mp_main__.", "")],
    "unhashable, up to 3.13 and from 3.14 on": lambda: [
        letter("TypeError", text)
        for text in ("unhashable type: 'list'", "cannot use 'list' as a dict key (unhashable type: 'list')")
    ],
    "a stack of faulthandler, up to 3.13 and from 3.14 on": lambda: [
        letter("unpoison.WorkerDied", "", "", crash_of(head + '  File "/app/shop.py", line 3 in ship\n' + tail))
        for head, tail in (
            ("Current thread 0x00007f (most recent call first):\n", ""),
            (
                OTHER_THREAD + "Current thread 0x00007f [MainThread] (most recent call first):\n",
                "\nCurrent thread's C stack trace (most recent call first):\n  Binary file '/usr/bin/python3', at +0x1a [0x5]\n",
            ),
        )
    ],
    "errors of a Java program": lambda: [
        letter("org.shop.NoStock", f"item {n}", f"org.shop.NoStock: item {n}\n\tat org.shop.Ship.run(Ship.java:{n})\n")
        for n in (1, 2)
    ],
}


@pytest.mark.parametrize("name", TOGETHER)
def test_these_fall_together(name):
    letters = TOGETHER[name]()
    assert len(letters) > 1
    assert len({of_letter(one) for one in letters}) == 1, [(one.error_type, one.error[:200]) for one in letters]
