"""bezoar makes any message consumer poison-proof."""

from bezoar.app import App
from bezoar.backoff import Backoff
from bezoar.deadletters.manager import DLQManager, PurgeResult, ReplayResult
from bezoar.deadletters.record import DeadLetter
from bezoar.errors import (
    BezoarError,
    BrokerUnavailable,
    CapabilityError,
    ConfigError,
    Discard,
    LetterNotFound,
    MissingExtra,
    OwnershipLost,
    PayloadError,
    Permanent,
    RemoteFailure,
    RetryLater,
    Throttled,
)
from bezoar.failure import ErrorClassification
from bezoar.handler import MessageMetadata, PoisonPillHandler, Policy
from bezoar.message import Delivery, Message

__all__ = [
    "App",
    "Backoff",
    "BezoarError",
    "BrokerUnavailable",
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
    "OwnershipLost",
    "PayloadError",
    "Permanent",
    "PoisonPillHandler",
    "Policy",
    "PurgeResult",
    "RemoteFailure",
    "ReplayResult",
    "RetryLater",
    "Throttled",
]
