"""A server that speaks enough of the MySQL protocol to let any password in and to refuse statements with the code in them."""

import contextlib
import socket
import struct
import threading

_CAPABILITIES = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x80000  # passwords, a database, protocol 4.1, transactions, plugins
_OK = b"\x00\x00\x00\x02\x00\x00\x00"
_QUIT, _QUERY = 0x01, 0x03


@contextlib.contextmanager
def mysql_that_refuses(greeting_code=None):
    """Its port. `fail 1213` is answered with error 1213, `cut` with a hang-up, anything else with OK."""

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError, ValueError):
                    _serve(connection, greeting_code)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(connection, greeting_code):
    stream = connection.makefile("rb")
    if greeting_code is not None:
        _send(connection, 0, _error(greeting_code))
        return
    _send(connection, 0, _greeting())
    _receive(stream)
    _send(connection, 2, _OK)
    while (said := _receive(stream)) and said[0] != _QUIT:
        statement = said[1:].decode("utf-8", "replace") if said[0] == _QUERY else ""
        if "cut" in statement:
            return
        code = statement.partition("fail ")[2]
        _send(connection, 1, _error(int(code)) if code else _OK)


def _greeting():
    low, high = _CAPABILITIES & 0xFFFF, _CAPABILITIES >> 16
    head = b"\x0a8.0.36\x00" + struct.pack("<I", 1) + b"saltsalt\x00"
    return head + struct.pack("<HBHHB", low, 45, 2, high, 21) + bytes(10) + b"saltsaltsalt\x00mysql_native_password\x00"


def _error(code):
    return b"\xff" + struct.pack("<H", code) + b"#HY000refused by the test"


def _send(connection, number, payload):
    connection.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)


def _receive(stream):
    head = stream.read(4)
    if len(head) < 4:
        return b""
    return stream.read(int.from_bytes(head[:3], "little"))
