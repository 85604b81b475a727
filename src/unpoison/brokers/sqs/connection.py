"""Send requests to SQS.

Through one client of botocore for each address and process: it is safe to use from many threads, and its sessions are not. A
forked child makes its own. Every failure becomes one of our errors here, and several requests are on their way at once.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import botocore.session
import msgspec
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
)

from unpoison.brokers.sqs.url import Address
from unpoison.errors import BrokerUnavailable, ConfigError
from unpoison.model.wording import counted
from unpoison.port.broker_url import masked_text

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def read(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """What botocore calls before it reads an answer to ReceiveMessage.

    It holds every value of an answer against the description of the service: 26 µs for each message, more than for anything else
    that we do with it. Here a C parser reads it, in 2 µs, and botocore finds an empty answer. The unusual is left to it.
    """
    if response_dict["status_code"] != 200 or not _is_json(response_dict["headers"]):
        return
    body: bytes = response_dict["body"]
    if b'"BinaryValue"' in body:  # it has to be decoded, wherever it is
        return
    try:
        answer = _decode(body)
    except msgspec.DecodeError:
        return
    customized_response_dict.update(answer)
    response_dict["body"] = b"{}"


def _is_json(headers: Mapping[str, str]) -> bool:
    """Not the XML that older versions of botocore asked for."""
    return "json" in headers.get("content-type", "")


T = TypeVar("T")
AT_ONCE = 10
"""What one request can hold at most."""

LIMIT = 1_048_576
"""Bytes of one message with its attributes, and of one request (256 KiB before August 2025)."""

CONNECT_TIMEOUT, ANSWER_TIMEOUT = 5, 10
MOST_CONNECTIONS = 256
"""That are kept open between requests. All users of an address in a process share them, and only as many as are needed at once
are opened."""
NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
LOST = ("ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight")
"""What SQS says about a receipt of a message that another consumer has by now, or that is gone."""

_REFUSED_LOGIN = (
    "AccessDenied",
    "AccessDeniedException",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
    "InvalidAccessKeyId",
    "KmsAccessDenied",
    "KMS.AccessDeniedException",
)
_EXPIRED = ("ExpiredToken", "ExpiredTokenException")
_MISSING = (NoCredentialsError, NoRegionError, PartialCredentialsError, ProfileNotFound)

_lock = threading.Lock()
_clients: dict[tuple[Any, ...], Any] = {}
_sessions: dict[tuple[int, str | None], Any] = {}
"""Each has read hundreds of kilobytes about all services of AWS, which takes as long as a hundred requests."""


class Refused(BrokerUnavailable):
    """SQS says no. `code` is its error code."""

    def __init__(self, told: str, code: str) -> None:
        self.code = code
        super().__init__(told)


class NoQueue(BrokerUnavailable):
    """The queue is not there, or not any more."""


class Denied(BrokerUnavailable):
    """We may not do this, or are not who we say."""


class Connection:
    """One user of an address. Nothing is held open by it but threads for requests."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.width = 2 * address.pollers
        """Requests that are under way at once, at most."""
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()

    def ask(self, operation: str, **arguments: Any) -> Any:
        """One request; returns the answer."""
        client = None
        try:
            client = _client(self.address)
            return _whole(getattr(client, operation)(**arguments), operation, arguments)
        except _MISSING as error:
            raise ConfigError(f"{self.address.shown} cannot be used: {masked_text(str(error))}. {_WHERE}") from None
        except ClientError as error:
            raise self._refused(operation, error, client) from None
        except BotoCoreError as error:
            raise BrokerUnavailable(f"{self.address.shown} does not answer ({operation}): {masked_text(str(error))}.") from None
        except ValueError as error:  # an endpoint that is none, or what is no answer of SQS
            raise BrokerUnavailable(
                f"{self.address.shown} cannot be understood ({operation}): {masked_text(str(error))}."
            ) from None

    def _refused(self, operation: str, error: ClientError, client: object) -> BrokerUnavailable:
        answer = error.response.get("Error", {})
        code, text = str(answer.get("Code", "unknown")), str(answer.get("Message", "no reason given")).rstrip(".")
        told = f"SQS refuses {operation}: {text} ({code})."
        if code in NO_QUEUE:
            return NoQueue(told)
        if code in _EXPIRED:
            _log_in_again(self.address, client)
            return Denied(f"{told} Renew the credentials: they are read again before the next try.")
        if code in _REFUSED_LOGIN:
            return Denied(f"{told} docs/sqs.md has the policy that unpoison needs.")
        return Refused(told, code)

    def widen(self, width: int) -> None:
        """Have more requests under way at once from now on."""
        with self._pool_lock:
            pool, self._pool, self.width = self._pool, None, max(width, self.width)
        if pool is not None:
            pool.shutdown()

    def start(self, call: Callable[[], T]) -> Future[T]:
        """Have this done by another thread."""
        with self._pool_lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.width, thread_name_prefix="unpoison-sqs")
            return self._pool.submit(call)

    def all_of(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Do these, several at once; returns what each returned. Raises what one of them raised, once all have ended."""
        if len(calls) < 2:
            return [call() for call in calls]
        futures = [self.start(call) for call in calls]
        failed = [error for future in futures if (error := future.exception()) is not None]
        if failed:
            raise failed[0]
        return [future.result() for future in futures]

    def close(self) -> None:
        with self._pool_lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def _whole(answer: Any, operation: str, arguments: Mapping[str, Any]) -> Any:
    """The answer. Raises ValueError if it is not SQS's: what stands between may say "200 OK" and mean something else, and what
    nobody has confirmed is not done."""
    missing = [field for field in _ALWAYS.get(operation, ()) if field not in answer]
    told = [each.get("Id") for kind in ("Successful", "Failed") for each in answer.get(kind) or ()]
    unanswered = {entry["Id"] for entry in arguments.get("Entries", ())} - set(told)
    if missing or unanswered:
        what = (
            f"no {missing[0]}"
            if missing
            else f"no word about {len(unanswered)} of {counted(len(arguments['Entries']), 'message')}"
        )
        raise ValueError(f"the answer has {what}, so it is not from SQS")
    return answer


_ALWAYS = {"get_queue_url": ("QueueUrl",), "create_queue": ("QueueUrl",), "get_queue_attributes": ("Attributes",)}
_WHERE = (
    "Region and credentials are looked for where the AWS tools look: variables (AWS_REGION, AWS_ACCESS_KEY_ID …), profiles, "
    "roles. Or name them: sqs://?region=eu-west-1&profile=shop"
)


def _client(address: Address) -> Any:
    """The one of this process for what the address says about requests."""
    known = (os.getpid(), *address._replace(prefix="", visibility=0, pollers=0)[:-1])  # without the names of DLQs
    with _lock:
        if known not in _clients:
            _clients[known] = _made(address)
        return _clients[known]


def _log_in_again(address: Address, expired: object) -> None:
    """Have the next request use what a file or a variable says by now: botocore reads both only once. If nothing is there any
    more, or another thread has done it, it stays as it is."""
    known = (os.getpid(), *address._replace(prefix="", visibility=0, pollers=0)[:-1])  # without the names of DLQs
    with _lock, suppress(BotoCoreError):
        if _clients.get(known) is not expired or address.key is not None:
            return
        session = botocore.session.Session(profile=address.profile)
        if session.get_credentials() is not None:
            _sessions[os.getpid(), address.profile] = session
            _clients[known] = _made(address)


def _made(address: Address) -> Any:
    login: dict[str, str] = {}
    if address.key is not None:
        login = {"aws_access_key_id": address.key, "aws_secret_access_key": address.secret or ""}
    config = Config(
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=address.wait + ANSWER_TIMEOUT,
        max_pool_connections=MOST_CONNECTIONS,
        parameter_validation=False,  # we know what we send, and it takes as long as sending it
        retries={"mode": "standard", "total_max_attempts": 3},
        tcp_keepalive=True,
    )
    log = logging.getLogger("botocore")
    if log.level == logging.NOTSET:
        # At DEBUG it writes every body into the log, and needs longer for that than for the request. Who wants it sets its level.
        log.setLevel(logging.INFO)
    session = _sessions.setdefault((os.getpid(), address.profile), botocore.session.Session(profile=address.profile))
    client = session.create_client("sqs", region_name=address.region, endpoint_url=address.endpoint, config=config, **login)
    client.meta.events.register("before-parse.sqs.ReceiveMessage", read)
    return client


def delete(connection: Connection, url: str, handles: Sequence[str]) -> dict[str, str]:
    """Delete these messages, ten at most. Returns those for which it failed, with the error code of each."""
    entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
    return _failed(handles, connection.ask("delete_message_batch", QueueUrl=url, Entries=entries))


def hide(connection: Connection, url: str, handles: Sequence[str], seconds: int) -> dict[str, str]:
    """As `delete`: hide these from others for so long."""
    entries = [{"Id": str(number), "ReceiptHandle": each, "VisibilityTimeout": seconds} for number, each in enumerate(handles)]
    return _failed(handles, connection.ask("change_message_visibility_batch", QueueUrl=url, Entries=entries))


def _failed(handles: Sequence[str], answer: Any) -> dict[str, str]:
    return {handles[int(each["Id"])]: each["Code"] for each in answer.get("Failed", ())}


def in_tens(items: Iterable[T]) -> list[list[T]]:
    """In parts that one request can hold."""
    everything = list(items)
    return [everything[start : start + AT_ONCE] for start in range(0, len(everything), AT_ONCE)]
