"""Do notices arrive at real servers, and what happens where one does not take them?"""

import json
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from email import message_from_bytes
from email.policy import default
from urllib.parse import quote

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

from tests.fault.certificates import make_certificate
from tests.notified import PLACE, notice, webhooks
from unpoison.notifying.delivering import GIVE_UP, LONGEST_WAIT, MOST_WAITING, Delivering
from unpoison.notifying.forms import written
from unpoison.notifying.sending import Answer, send
from unpoison.notifying.targets import targets_of
from unpoison.testing.isolation.diary import wait_until

SAID = written(notice(), PLACE, 110.0, 1_700_000_000.0)


def sent(url, timeout=5.0):
    (target,) = targets_of([url])
    return send(target, SAID, timeout)


@pytest.fixture
def hooks():
    with webhooks() as server:
        yield server


# A webhook


def test_a_webhook_gets_json_and_who_sends_it(hooks):
    url = hooks.url.replace("http://", "http://ada:s3cr%40t@")
    assert sent(url) == Answer(True, "200 ok")
    ((path, headers, _),) = hooks.requests
    assert path == "/hooks/T0PSECRET?key=HUSHHUSH"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic YWRhOnMzY3JAdA=="
    assert headers["Idempotency-Key"] == hooks.taken[0]["id"]
    assert hooks.taken[0]["kind"] == "new-group"


def test_slack_gets_its_form(hooks):
    assert sent(f"slack+{hooks.url}").is_sent
    assert set(hooks.taken[0]) == {"text", "blocks", "parse", "link_names", "unfurl_links"}


@pytest.mark.parametrize(
    ("status", "headers", "is_final", "retry_after"),
    [
        (500, {}, False, None),
        (503, {"Retry-After": "7"}, False, 7.0),
        (429, {"Retry-After": "30"}, False, 30.0),
        (429, {"Retry-After": "1e9"}, False, 600.0),
        (429, {"Retry-After": "soon"}, False, None),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, False, 0.0),
        (404, {}, True, None),
        (403, {"Retry-After": "7"}, True, None),
    ],
)
def test_what_a_webhook_answers_says_whether_to_try_again(hooks, status, headers, is_final, retry_after):
    hooks.answers.append((status, headers))
    answer = sent(hooks.url)
    assert (answer.is_sent, answer.is_final, answer.retry_after) == (False, is_final, retry_after)
    assert answer.said.startswith(f"{status} ")
    assert "SECRET" not in answer.said
    assert "HUSH" not in answer.said, "what the server repeats of the address is masked"


def test_a_redirect_is_not_followed(hooks):
    with webhooks() as other:
        hooks.answers.append((302, {"Location": other.url}))
        answer = sent(hooks.url)
        hooks.answers.append((307, {"Location": "/elsewhere"}))
        assert (sent(hooks.url).is_final, len(hooks.requests)) == (True, 2)
    assert (answer.is_sent, answer.is_final, other.requests) == (False, True, [])
    assert "redirect" in answer.said


def test_a_webhook_that_is_down_or_silent():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        answer = sent(f"http://127.0.0.1:{port}/SECRETPATH", timeout=0.2)
        assert (answer.is_sent, answer.is_final) == (False, False)
    answer = sent(f"http://127.0.0.1:{port}/SECRETPATH")
    assert (answer.is_sent, answer.is_final) == (False, False)
    assert "refused" in answer.said


def test_a_webhook_that_does_not_speak_http():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            with server.accept()[0] as client:
                client.sendall(b"SSH-2.0-OpenSSH\r\n")
                client.recv(65_536)

        thread = threading.Thread(target=greet)
        thread.start()
        answer = sent(f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()
    assert (answer.is_sent, answer.is_final) == (False, False)


def test_the_proxy_of_the_environment_is_used(hooks, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", hooks.url.partition("/hooks")[0])
    assert sent("http://chat.example/in").is_sent
    assert hooks.requests[0][0] == "http://chat.example/in"


# A mail server


class Mailroom:
    def __init__(self):
        self.taken = []
        self.refuses = {}

    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):  # noqa: N802 - the name that is asked for
        if address in self.refuses:
            return self.refuses[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802
        self.taken.append((envelope.mail_from, envelope.rcpt_tos, message_from_bytes(envelope.content, policy=default)))
        return "250 taken"

    def authenticate(self, server, session, envelope, mechanism, given):
        right = isinstance(given, LoginPassword) and (given.login, given.password) == (b"ada", b"s3cr@t")
        return AuthResult(success=right, handled=right)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@contextmanager
def mail_server(room, **options):
    class OnFreePort(Controller):
        def factory(self):
            return SMTP(self.handler, hostname="mx.test", loop=self.loop, **self.SMTP_kwargs)

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    controller = OnFreePort(room, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


def context_of(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def with_starttls(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    room = Mailroom()
    options = {"tls_context": context_of(certificate), "require_starttls": True, "auth_required": True}
    with mail_server(room, authenticator=room.authenticate, **options) as port:
        yield room, port


def mail_url(port, login="ada:s3cr%40t@", to="a@shop.example,b@shop.example", scheme="smtp", more=""):
    return f"{scheme}://{login}localhost:{port}/?from=unpoison@shop.example&to={quote(to)}{more}"


def test_mail_goes_over_starttls_with_a_login(with_starttls):
    room, port = with_starttls
    assert sent(mail_url(port)) == Answer(True, "taken for a@shop.example, b@shop.example")
    ((sender, receivers, mail),) = room.taken
    assert (sender, receivers) == ("unpoison@shop.example", ["a@shop.example", "b@shop.example"])
    assert mail["Subject"] == "[unpoison] New poison in 'orders': KeyError"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert "how bad:  3 dead letters so far" in mail.get_content()


def test_a_wrong_password_is_final_and_not_shown(with_starttls):
    room, port = with_starttls
    answer = sent(mail_url(port, "ada:wrongpassword@"))
    assert (answer.is_sent, answer.is_final, room.taken) == (False, True, [])
    assert answer.said.startswith("535")
    assert "wrongpassword" not in answer.said


def test_a_certificate_that_nobody_has_vouched_for_is_refused(with_starttls, monkeypatch):
    room, port = with_starttls
    monkeypatch.delenv("SSL_CERT_FILE")
    answer = sent(mail_url(port))
    assert (answer.is_final, room.taken) == (True, [])
    assert "certificate is not valid here" in answer.said


def test_mail_goes_over_tls_from_the_start(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    room = Mailroom()
    with (
        mail_server(room) as port,
        socket.create_server(("127.0.0.1", 0)) as front,
        tls_front(front, port, context_of(certificate)),
    ):
        assert sent(mail_url(front.getsockname()[1], "", scheme="smtps")).is_sent
    assert len(room.taken) == 1


@contextmanager
def tls_front(front, port, context):
    """Takes one connection with TLS and passes it on: the controller of aiosmtpd cannot start with a certificate of its own."""

    def copy(source, sink):
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass

    def serve():
        with (
            context.wrap_socket(front.accept()[0], server_side=True) as client,
            socket.create_connection(("127.0.0.1", port)) as up,
        ):
            back = threading.Thread(target=copy, args=(up, client), daemon=True)
            back.start()
            copy(client, up)
            up.shutdown(socket.SHUT_WR)
            back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_server_without_starttls_gets_nothing_unless_told_so():
    room = Mailroom()
    with mail_server(room) as port:
        answer = sent(mail_url(port, ""))
        assert (answer.is_sent, answer.is_final, room.taken) == (False, True, [])
        assert "tls=off" in answer.said
        assert sent(mail_url(port, "", more="&tls=off")).is_sent
    assert len(room.taken) == 1


def test_receivers_that_the_server_does_not_take():
    room = Mailroom()
    room.refuses = {"a@shop.example": "550 who?"}
    with mail_server(room) as port:
        answer = sent(mail_url(port, "", more="&tls=off"))
        assert (answer.is_sent, answer.said) == (True, "sent, but not to all of them: a@shop.example: 550 who?")
        room.refuses |= {"b@shop.example": "450 later"}
        answer = sent(mail_url(port, "", more="&tls=off"))
        assert (answer.is_sent, answer.is_final) == (False, False)


# Again and again


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def delivering(answers, clock):
    """One whose target gives these answers, and what became of its notices."""
    told, asked = [], []

    def once(target, said, timeout):
        asked.append(clock.now)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    (target,) = targets_of(["https://h.example/SECRET"])
    return Delivering(target, lambda said, is_sent: told.append(is_sent), clock=clock, once=once), told, asked


def until_done(one, clock, told, count=1):
    while len(told) < count:
        clock.now += one.step() or 0.0


def test_what_fails_is_tried_again_later_and_later():
    clock = Clock()
    one, told, asked = delivering([*[Answer(False, "500")] * 4, Answer(True, "200")], clock)
    one.put(SAID)
    until_done(one, clock, told)
    assert (told, asked) == ([True], [0.0, 1.0, 3.0, 7.0, 15.0])


def test_a_server_that_says_when_is_obeyed_even_when_another_notice_comes():
    clock = Clock()
    one, told, asked = delivering([Answer(False, "429", retry_after=40.0), Answer(True, "200")], clock)
    one.put(SAID)
    assert one.step() == 40.0
    clock.now = 10.0
    one.put(SAID)
    assert (one.step(), asked) == (30.0, [0.0])
    clock.now = 40.0
    until_done(one, clock, told, 2)
    assert asked == [0.0, 40.0, 40.0]


def test_it_is_given_up_after_a_while_with_one_line(caplog):
    clock = Clock()
    one, told, _ = delivering([Answer(False, "500 broken")], clock)
    for _ in range(3):
        one.put(SAID)
    until_done(one, clock, told, 3)
    assert told == [False] * 3
    assert GIVE_UP <= clock.now <= GIVE_UP + LONGEST_WAIT
    (line,) = caplog.records
    assert "could not be sent to https://h.example/***: 500 broken. It is given up" in line.getMessage()


def test_what_can_never_be_sent_is_tried_once_and_that_it_works_again_is_said(caplog):
    clock = Clock()
    one, told, _ = delivering([Answer(False, "404", is_final=True), Answer(True, "200")], clock)
    one.put(SAID)
    one.put(SAID)
    until_done(one, clock, told, 2)
    assert (told, clock.now) == ([False, True], 0.0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_only_so_many_wait_for_a_target_that_is_down():
    clock = Clock()
    one, told, _ = delivering([Answer(False, "500")], clock)
    for _ in range(MOST_WAITING + 5):
        one.put(SAID)
    assert told == [False] * 5


def test_at_the_end_it_waits_for_what_can_be_sent_and_not_for_long(hooks):
    (target,) = targets_of([hooks.url])
    told, freed = [], threading.Event()
    hooks.before = lambda: freed.wait(20)
    one = Delivering(target, lambda said, is_sent: told.append(is_sent))
    one.start()
    one.put(SAID)
    one.close(time.monotonic() + 0.2)
    assert one.join() == 1, "the target is silent"
    freed.set()
    wait_until(lambda: told, lambda: "nothing was sent")
    quick = Delivering(target, lambda said, is_sent: told.append(is_sent))
    quick.start()
    for _ in range(3):
        quick.put(SAID)
    quick.close(time.monotonic() + 30)
    assert quick.join() == 0
    assert json.loads(hooks.requests[-1][2])["kind"] == "new-group"
