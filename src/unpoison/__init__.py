"""unpoison makes message consumers poison-proof."""

from unpoison.app import App
from unpoison.control.options import Admission, Breaker
from unpoison.deadletters import DiscardResult, DLQManager, PurgeResult, ReplayResult, Selection
from unpoison.decide.policy import PoisonPillHandler, Policy
from unpoison.errors import (
    BrokerUnavailable,
    BulkStopped,
    CapabilityError,
    ConfigError,
    Discard,
    FilterError,
    LetterNotFound,
    MissingExtra,
    OriginalUnavailable,
    OwnershipLost,
    PayloadError,
    Permanent,
    PublishedMessage,
    PublishFailed,
    Refusal,
    RemoteFailure,
    RetryLater,
    StoreUnavailable,
    Throttled,
    UnfinishedHandler,
    UnpoisonError,
)
from unpoison.filters.filter import Filter
from unpoison.model.backoff import Backoff
from unpoison.model.dead_letter import DeadLetter
from unpoison.model.message import Delivery, Message, MessageMetadata, Native
from unpoison.model.verdict import ErrorClassification
from unpoison.redaction.rules import Redact
from unpoison.reporting.current_message import CurrentMessage, MessageFields, current_message
from unpoison.reporting.report import RunResult, Tally

__all__ = [
    "Admission",
    "App",
    "Backoff",
    "Breaker",
    "BrokerUnavailable",
    "BulkStopped",
    "CapabilityError",
    "ConfigError",
    "CurrentMessage",
    "DLQManager",
    "DeadLetter",
    "Delivery",
    "Discard",
    "DiscardResult",
    "ErrorClassification",
    "Filter",
    "FilterError",
    "LetterNotFound",
    "Message",
    "MessageFields",
    "MessageMetadata",
    "MissingExtra",
    "Native",
    "OriginalUnavailable",
    "OwnershipLost",
    "PayloadError",
    "Permanent",
    "PoisonPillHandler",
    "Policy",
    "PublishFailed",
    "PublishedMessage",
    "PurgeResult",
    "Redact",
    "Refusal",
    "RemoteFailure",
    "ReplayResult",
    "RetryLater",
    "RunResult",
    "Selection",
    "StoreUnavailable",
    "Tally",
    "Throttled",
    "UnfinishedHandler",
    "UnpoisonError",
    "current_message",
]
