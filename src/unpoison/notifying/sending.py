"""How is one notice sent, and what came of it?

HTTP by urllib: the proxy of the environment is used, certificates are verified, and a redirect is an error, since it could lead
anywhere. Mail by smtplib. Everything has a time limit. Never raises.
"""

import json
import smtplib
import socket
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, parsedate_to_datetime
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, NamedTuple

from unpoison.model.wording import one_line
from unpoison.notifying import forms
from unpoison.notifying.forms import Written
from unpoison.notifying.targets import Mailbox, Target, Webhook, harmless

TIMEOUT = 10.0
"""Seconds for each step of a connection."""
READ = 500
"""Bytes of an answer that are read."""
MOST_WAIT = 600.0
"""Seconds that are waited at most because a server asks for it."""
_TRY_AGAIN = (408, 425, 429, *range(500, 600))


class Answer(NamedTuple):
    """What came back. `is_final`: it would be the same again. `retry_after`: seconds that the server asked for."""

    is_sent: bool
    said: str
    is_final: bool = False
    retry_after: float | None = None


def send(target: Target, said: Written, timeout: float = TIMEOUT) -> Answer:
    """Send it once."""
    try:
        answer = _post(target, said, timeout) if isinstance(target, Webhook) else _mail(target, said, timeout)
    except Exception as error:  # nothing that goes wrong here may end the thread that sends
        answer = Answer(False, f"{type(error).__name__}: {error}")
    return answer._replace(said=one_line(harmless(answer.said, target), READ))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def _post(target: Webhook, said: Written, timeout: float) -> Answer:
    body = json.dumps(forms.as_slack(said) if target.is_slack else forms.as_json(said)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "unpoison", "Idempotency-Key": said.id}
    if target.login is not None:
        headers["Authorization"] = f"Basic {b64encode(':'.join(target.login).encode()).decode()}"
    request = urllib.request.Request(target.url, body, headers, method="POST")  # noqa: S310 - the scheme was checked
    opener = urllib.request.build_opener(_NoRedirect(), urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return Answer(True, f"{answer.status} {_read(answer)}")
    except urllib.error.HTTPError as error:
        with error:
            return _refused(error)
    except urllib.error.URLError as error:
        return _unreachable(error.reason)
    except (OSError, HTTPException) as error:
        return _unreachable(error)


def _read(answer: Any) -> str:
    try:
        return " ".join(answer.read(READ).decode("utf-8", "replace").split())
    except (OSError, HTTPException):  # the status has been read, and counts
        return ""


def _refused(error: urllib.error.HTTPError) -> Answer:
    said = f"{error.code} {error.reason}: {_read(error)}".rstrip(": ")
    if 300 <= error.code < 400:
        return Answer(
            False, f"{said}. It is a redirect, which is not followed: configure the address it leads to.", is_final=True
        )
    wait = _seconds(error.headers.get("Retry-After")) if error.code in (429, 503) else None
    return Answer(False, said, error.code not in _TRY_AGAIN, wait)


def _seconds(text: str | None) -> float | None:
    """Of Retry-After: a number of seconds, or a date."""
    if not text:
        return None
    try:
        return min(
            MOST_WAIT,
            max(0.0, float(text) if text.strip()[0].isdigit() else parsedate_to_datetime(text).timestamp() - time.time()),
        )
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _unreachable(reason: object) -> Answer:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Answer(False, f"its certificate is not valid here: {reason.verify_message}", is_final=True)
    if isinstance(reason, TimeoutError):
        return Answer(False, f"no answer within {TIMEOUT:g} s")
    return Answer(False, f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason))


def message_of(target: Mailbox, said: Written) -> EmailMessage:
    """The mail. Its headers take no line ends: what comes from elsewhere was made one line before."""
    mail = EmailMessage(policy=SMTP)
    mail["Subject"] = f"[unpoison] {forms.title(said)}"
    mail["From"], mail["To"] = target.sender, ", ".join(target.receivers)
    mail["Date"] = formatdate(said.at, usegmt=True)
    mail["Message-ID"] = f"<{said.id}@{target.sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Unpoison-Kind"] = str(said.notice.kind)
    mail.set_content(forms.as_text(said), charset="utf-8")
    return mail


def _mail(target: Mailbox, said: Written, timeout: float) -> Answer:
    try:
        with _connected(target, timeout) as server:
            if target.encryption == "starttls":
                server.starttls(context=ssl.create_default_context())
            if target.login is not None:
                server.login(*target.login)
            refused = server.send_message(message_of(target, said))
    except smtplib.SMTPRecipientsRefused as error:
        return _no_receiver(error.recipients)
    except smtplib.SMTPResponseException as error:
        return Answer(False, f"{error.smtp_code} {_text(error.smtp_error)}", is_final=500 <= error.smtp_code < 600)
    except smtplib.SMTPNotSupportedError as error:
        return Answer(False, f"{error} For a server without STARTTLS write ?tls=off, without a password.", is_final=True)
    except OSError as error:
        return _unreachable(error)
    if refused:
        return Answer(True, f"sent, but not to all of them: {_no_receiver(refused).said}")
    return Answer(True, f"taken for {', '.join(target.receivers)}")


def _connected(target: Mailbox, timeout: float) -> smtplib.SMTP:
    name = socket.gethostname()
    us = name if "." in name else "[127.0.0.1]"  # smtplib would ask name servers, and wait for them
    if target.encryption == "tls":
        return smtplib.SMTP_SSL(target.host, target.port, us, timeout=timeout, context=ssl.create_default_context())
    return smtplib.SMTP(target.host, target.port, us, timeout)


def _no_receiver(refused: dict[str, tuple[int, bytes]]) -> Answer:
    said = "; ".join(f"{who}: {code} {_text(why)}" for who, (code, why) in refused.items())
    return Answer(False, said, is_final=all(code >= 500 for code, _ in refused.values()))


def _text(said: bytes | str) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said
