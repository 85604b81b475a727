"""unpoison makes message consumers poison-proof."""

from unpoison.app import App
from unpoison.backoff import Backoff
from unpoison.deadletters.manager import DLQManager, PurgeResult, ReplayResult
from unpoison.deadletters.record import DeadLetter
from unpoison.errors import (
    BrokerUnavailable,
    BulkStopped,
    CapabilityError,
    ConfigError,
    Discard,
    LetterNotFound,
    MissingExtra,
    OwnershipLost,
    PayloadError,
    Permanent,
    PublishedMessage,
    PublishFailed,
    Refusal,
    RemoteFailure,
    RetryLater,
    Throttled,
    UnfinishedHandler,
    UnpoisonError,
)
from unpoison.failure import ErrorClassification
from unpoison.handler import MessageMetadata, PoisonPillHandler, Policy
from unpoison.message import Delivery, Message
from unpoison.native import Native

__all__ = [
    "App",
    "Backoff",
    "BrokerUnavailable",
    "BulkStopped",
    "CapabilityError",
    "ConfigError",
    "DLQManager",
    "DeadLetter",
    "Delivery",
    "Discard",
    "ErrorClassification",
    "LetterNotFound",
    "Message",
    "MessageMetadata",
    "MissingExtra",
    "Native",
    "OwnershipLost",
    "PayloadError",
    "Permanent",
    "PoisonPillHandler",
    "Policy",
    "PublishFailed",
    "PublishedMessage",
    "PurgeResult",
    "Refusal",
    "RemoteFailure",
    "ReplayResult",
    "RetryLater",
    "Throttled",
    "UnfinishedHandler",
    "UnpoisonError",
]
