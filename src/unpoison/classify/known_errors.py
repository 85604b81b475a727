"""What the class of an exception says about the failure.

Classes are known by their full names, so that none of these packages is imported. The nearest listed class in the exception's
ancestry decides. What a server replied (a status, an error code) goes before it: see `server_replies`.
"""

from collections.abc import Mapping

from unpoison.classify.status_codes import BUG, PERMANENT, THROTTLED, TRANSIENT, UNKNOWN, Meaning
from unpoison.model.verdict import ErrorClassification

_LOST = "the connection was refused, lost or never came about"
_SLOW = "the other side did not answer in time"
_WRONG_DATA = "the same data fails the same way again"
_NO_FIT = "the data does not fit its schema, and will not the next time"
_NOT_ENCODABLE = "the value cannot be written or read in this format"
_BROKEN_CODE = "the code is wrong, not the moment"
_MISUSE = "the client is used in a way that it does not support"
_ADDRESS = "the address or header is malformed"
_CERTIFICATE = "the two sides could not agree on a secure connection, which is not the message's fault"
_LOOP = "the redirects lead nowhere"
_CONFLICT = "another client was faster or holds the lock; the next attempt may get it"
_REFUSED_DATA = "the database refuses this data, and would refuse it again"
_WRONG_STATEMENT = "the database cannot carry out this statement: fix it, then replay"
_DATABASE_AWAY = "the database is away, busy or lost the connection"
_SERVER_AWAY = "the server is away, busy or changing roles"

_TABLE: tuple[tuple[str, str, ErrorClassification, str], ...] = (
    ("builtins", "ValueError TypeError KeyError UnicodeError OverflowError", PERMANENT, _WRONG_DATA),
    (
        "builtins",
        "FileNotFoundError FileExistsError PermissionError IsADirectoryError NotADirectoryError",
        PERMANENT,
        "the file system answers the same until it is changed",
    ),
    ("builtins", "ConnectionError", TRANSIENT, _LOST),
    ("builtins", "TimeoutError", TRANSIENT, _SLOW),
    ("builtins", "OSError", TRANSIENT, "the operating system or the network may recover"),
    (
        "builtins",
        "AttributeError NameError ImportError IndexError AssertionError NotImplementedError RecursionError",
        BUG,
        _BROKEN_CODE,
    ),
    ("builtins", "MemoryError", UNKNOWN, "memory ran out, for this message or for its neighbours"),
    ("builtins", "SystemExit KeyboardInterrupt", UNKNOWN, "the handler asked its process to end"),
    ("unpoison.errors", "BrokerUnavailable", TRANSIENT, "the broker that the handler talked to is away"),
    ("unpoison.errors", "ConfigError CapabilityError", BUG, _BROKEN_CODE),
    ("unpoison.errors", "UnfinishedHandler", BUG, "the handler returned its work instead of doing it"),
    ("asyncio.exceptions", "IncompleteReadError", TRANSIENT, _LOST),
    ("decimal", "InvalidOperation", PERMANENT, _WRONG_DATA),
    ("ftplib", "error_temp", TRANSIENT, "the FTP server asks to try again"),
    ("ftplib", "error_perm", PERMANENT, "the FTP server refuses this for good"),
    ("http.client", "IncompleteRead BadStatusLine", TRANSIENT, _LOST),
    ("http.client", "InvalidURL", PERMANENT, _ADDRESS),
    ("io", "UnsupportedOperation", BUG, _BROKEN_CODE),
    ("multiprocessing.context", "TimeoutError", TRANSIENT, _SLOW),
    ("shutil", "SameFileError SpecialFileError", PERMANENT, "the file system answers the same until it is changed"),
    ("smtplib", "SMTPNotSupportedError", PERMANENT, "the mail server does not know this command"),
    ("socket", "gaierror herror", TRANSIENT, "the host name could not be resolved now"),
    ("sqlite3", "OperationalError", TRANSIENT, _DATABASE_AWAY),
    ("sqlite3", "IntegrityError DataError", PERMANENT, _REFUSED_DATA),
    ("sqlite3", "ProgrammingError NotSupportedError", PERMANENT, _WRONG_STATEMENT),
    ("ssl", "SSLError", TRANSIENT, _CERTIFICATE),
    ("struct", "error", PERMANENT, _NOT_ENCODABLE),
    ("subprocess", "TimeoutExpired", TRANSIENT, "the program did not end in time"),
    ("xml.etree.ElementTree", "ParseError", PERMANENT, _NOT_ENCODABLE),
    ("requests.exceptions", "RequestException", TRANSIENT, "the request did not get through"),
    ("requests.exceptions", "InvalidURL MissingSchema InvalidSchema InvalidHeader URLRequired", PERMANENT, _ADDRESS),
    ("requests.exceptions", "InvalidJSONError", PERMANENT, "what should be JSON is not"),
    ("requests.exceptions", "TooManyRedirects", PERMANENT, _LOOP),
    ("requests.exceptions", "StreamConsumedError", BUG, _MISUSE),
    ("httpx", "RequestError", TRANSIENT, "the request did not get through"),
    ("httpx", "UnsupportedProtocol InvalidURL LocalProtocolError", PERMANENT, _ADDRESS),
    ("httpx", "TooManyRedirects", PERMANENT, _LOOP),
    ("httpx", "StreamError CookieConflict", BUG, _MISUSE),
    ("httpcore", "NetworkError ProtocolError ProxyError ConnectionNotAvailable", TRANSIENT, _LOST),
    ("httpcore", "TimeoutException", TRANSIENT, _SLOW),
    ("httpcore", "UnsupportedProtocol LocalProtocolError", PERMANENT, _ADDRESS),
    ("aiohttp.client_exceptions", "ClientError", TRANSIENT, "the request did not get through"),
    ("aiohttp.client_exceptions", "InvalidURL NonHttpUrlClientError", PERMANENT, _ADDRESS),
    ("aiohttp.client_exceptions", "ContentTypeError", PERMANENT, "what should be JSON is not"),
    ("aiohttp.client_exceptions", "TooManyRedirects", PERMANENT, _LOOP),
    ("urllib3.exceptions", "HTTPError", TRANSIENT, "the request did not get through"),
    ("urllib3.exceptions", "LocationValueError ProxySchemeUnknown InvalidHeader", PERMANENT, _ADDRESS),
    ("botocore.exceptions", "HTTPClientError ConnectionError IncompleteReadError", TRANSIENT, _LOST),
    (
        "botocore.exceptions",
        "CredentialRetrievalError MetadataRetrievalError TokenRetrievalError NoCredentialsError",
        TRANSIENT,
        "no credentials could be had now, which is not the message's fault",
    ),
    ("botocore.exceptions", "CapacityNotAvailableError", TRANSIENT, "the client holds requests back for now"),
    ("botocore.exceptions", "ChecksumError FlexibleChecksumError", TRANSIENT, "what arrived was damaged on the way"),
    (
        "botocore.exceptions",
        "ParamValidationError ValidationError MissingParametersError EndpointResolutionError",
        PERMANENT,
        _WRONG_DATA,
    ),
    ("boto3.exceptions", "RetriesExceededError", TRANSIENT, _LOST),
    ("s3transfer.exceptions", "RetriesExceededError", TRANSIENT, _LOST),
    ("psycopg", "OperationalError", TRANSIENT, _DATABASE_AWAY),
    ("psycopg", "IntegrityError DataError", PERMANENT, _REFUSED_DATA),
    ("psycopg", "ProgrammingError NotSupportedError", PERMANENT, _WRONG_STATEMENT),
    ("psycopg2", "OperationalError InterfaceError", TRANSIENT, _DATABASE_AWAY),
    ("psycopg2", "IntegrityError DataError", PERMANENT, _REFUSED_DATA),
    ("psycopg2", "ProgrammingError NotSupportedError", PERMANENT, _WRONG_STATEMENT),
    ("asyncpg.exceptions._base", "InterfaceError", TRANSIENT, "the connection is closed or busy"),
    ("asyncpg.exceptions._base", "ClientConfigurationError", PERMANENT, _MISUSE),
    ("asyncpg.exceptions._base", "UnsupportedClientFeatureError UnsupportedServerFeatureError", PERMANENT, _MISUSE),
    ("asyncpg.exceptions._base", "TargetServerAttributeNotMatched", TRANSIENT, _SERVER_AWAY),
    ("asyncpg.exceptions._base", "OutdatedSchemaCacheError", TRANSIENT, "the tables changed; the next attempt sees the new ones"),
    ("sqlalchemy.exc", "OperationalError InterfaceError DisconnectionError", TRANSIENT, _DATABASE_AWAY),
    ("sqlalchemy.exc", "TimeoutError", TRANSIENT, "no connection of the pool became free in time"),
    ("sqlalchemy.exc", "IntegrityError DataError", PERMANENT, _REFUSED_DATA),
    ("sqlalchemy.exc", "ProgrammingError NotSupportedError", PERMANENT, _WRONG_STATEMENT),
    ("sqlalchemy.orm.exc", "StaleDataError", TRANSIENT, _CONFLICT),
    *(
        row
        for module in ("pymysql.err", "MySQLdb._exceptions", "asyncmy.errors", "mysql.connector.errors", "django.db.utils")
        for row in (
            (module, "OperationalError InterfaceError", TRANSIENT, _DATABASE_AWAY),
            (module, "IntegrityError DataError", PERMANENT, _REFUSED_DATA),
            (module, "ProgrammingError NotSupportedError", PERMANENT, _WRONG_STATEMENT),
        )
    ),
    ("mysql.connector.errors", "ConnectionTimeoutError ReadTimeoutError WriteTimeoutError", TRANSIENT, _SLOW),
    ("mysql.connector.errors", "PoolError", TRANSIENT, "no connection of the pool became free in time"),
    ("django.db.transaction", "TransactionManagementError", UNKNOWN, "an earlier error has ended the transaction"),
    ("django.core.exceptions", "ValidationError", PERMANENT, _NO_FIT),
    ("django.core.exceptions", "FieldError ImproperlyConfigured SynchronousOnlyOperation AppRegistryNotReady", BUG, _BROKEN_CODE),
    ("redis.exceptions", "ConnectionError TimeoutError", TRANSIENT, _LOST),
    (
        "redis.exceptions",
        "ClusterError AskError TryAgainError ReadOnlyError SlotNotCoveredError InvalidResponse",
        TRANSIENT,
        _SERVER_AWAY,
    ),
    ("redis.exceptions", "OutOfMemoryError", TRANSIENT, "the server is out of memory"),
    ("redis.exceptions", "WatchError LockError", TRANSIENT, _CONFLICT),
    ("redis.exceptions", "DataError CrossSlotTransactionError", PERMANENT, _WRONG_DATA),
    ("redis.exceptions", "ResponseError", PERMANENT, "the server refuses this command, and would refuse it again"),
    ("redis.exceptions", "NoScriptError ExecAbortError", UNKNOWN, "the server dropped the script or the transaction"),
    ("pymongo.errors", "ConnectionFailure CursorNotFound", TRANSIENT, _SERVER_AWAY),
    ("pymongo.errors", "ExecutionTimeout WTimeoutError WriteConcernError", TRANSIENT, _SLOW),
    ("pymongo.errors", "WriteError InvalidName CollectionInvalid", PERMANENT, _REFUSED_DATA),
    ("pymongo.errors", "InvalidOperation", BUG, _MISUSE),
    ("bson.errors", "BSONError", PERMANENT, _NOT_ENCODABLE),
    ("pika.exceptions", "AMQPConnectionError ChannelWrongStateError ConsumerCancelled", TRANSIENT, _LOST),
    ("pika.exceptions", "NackError", TRANSIENT, "the server did not take the message, as one that is full does"),
    ("pika.exceptions", "UnroutableError", PERMANENT, "no queue takes the message"),
    ("pika.exceptions", "UnsupportedAMQPFieldException InvalidFieldTypeException ShortStringTooLong", PERMANENT, _NOT_ENCODABLE),
    ("pika.exceptions", "DuplicateConsumerTag ReentrancyError MethodNotImplemented", BUG, _MISUSE),
    ("amqp.exceptions", "RecoverableConnectionError RecoverableChannelError ConnectionError", TRANSIENT, _LOST),
    ("amqp.exceptions", "MessageNacked", TRANSIENT, "the server did not take the message, as one that is full does"),
    ("amqp.exceptions", "IrrecoverableConnectionError", UNKNOWN, "the server ended the connection"),
    ("kombu.exceptions", "OperationalError LimitExceeded BatchPublishError", TRANSIENT, _SERVER_AWAY),
    ("kombu.exceptions", "InconsistencyError", UNKNOWN, "the broker's own tables contradict each other"),
    ("kombu.exceptions", "SerializationError ContentDisallowed", PERMANENT, _NOT_ENCODABLE),
    ("kombu.exceptions", "NotBoundError MessageStateError SerializerNotInstalled VersionMismatch", BUG, _MISUSE),
    ("confluent_kafka.serialization", "SerializationError", PERMANENT, _NOT_ENCODABLE),
    ("cimpl", "IllegalStateException ConcurrentModificationException", BUG, _MISUSE),
    (
        "aiokafka.errors",
        "KafkaTimeoutError KafkaUnavailableError AuthenticationFailedError CommitFailedError",
        TRANSIENT,
        _SERVER_AWAY,
    ),
    ("aiokafka.errors", "QuotaViolationError", THROTTLED, "a quota is used up"),
    ("aiokafka.errors", "RecordTooLargeError", PERMANENT, "the message is too large"),
    (
        "aiokafka.errors",
        "IllegalStateError IllegalArgumentError IllegalOperation KafkaConfigurationError UnsupportedCodecError",
        BUG,
        _MISUSE,
    ),
    (
        "nats.errors",
        "NoServersError NoRespondersError ConnectionClosedError StaleConnectionError ConnectionReconnectingError",
        TRANSIENT,
        _LOST,
    ),
    ("nats.errors", "ConnectionDrainingError OutboundBufferLimitError SlowConsumerError", TRANSIENT, _LOST),
    ("nats.errors", "AuthorizationError InvalidUserCredentialsError", TRANSIENT, "the login was refused"),
    ("nats.errors", "SecureConnRequiredError SecureConnWantedError SecureConnFailedError", TRANSIENT, _CERTIFICATE),
    ("nats.errors", "MaxPayloadError", PERMANENT, "the message is too large"),
    ("nats.errors", "BadSubjectError BadHeaderError", PERMANENT, _ADDRESS),
    ("nats.errors", "JsonParseError", PERMANENT, "what should be JSON is not"),
    (
        "nats.errors",
        "BadSubscriptionError BadTimeoutError InvalidCallbackTypeError NotJSMessageError MsgAlreadyAckdError",
        BUG,
        _MISUSE,
    ),
    (
        "nats.js.errors",
        "ServiceUnavailableError ServerError NoStreamResponseError TooManyStalledMsgsError ConsumerSequenceMismatchError",
        TRANSIENT,
        _SERVER_AWAY,
    ),
    ("nats.js.errors", "KeyWrongLastSequenceError", TRANSIENT, _CONFLICT),
    ("nats.js.errors", "DigestMismatchError", TRANSIENT, "what arrived was damaged on the way"),
    ("nats.js.errors", "NotFoundError BadRequestError ObjectAlreadyExists", PERMANENT, "the server refuses this for good"),
    ("nats.js.errors", "InvalidKeyError InvalidBucketNameError InvalidObjectNameError BadObjectMetaError", PERMANENT, _ADDRESS),
    ("grpc", "FutureTimeoutError", TRANSIENT, _SLOW),
    ("pydantic_core._pydantic_core", "ValidationError", PERMANENT, _NO_FIT),
    ("pydantic_core._pydantic_core", "SchemaError", BUG, "the schema itself is wrong"),
    ("pydantic.errors", "PydanticUserError", BUG, _MISUSE),
    ("msgspec", "ValidationError", PERMANENT, _NO_FIT),
    ("msgspec", "MsgspecError", PERMANENT, _NOT_ENCODABLE),
    ("jsonschema.exceptions", "ValidationError", PERMANENT, _NO_FIT),
    ("jsonschema.exceptions", "SchemaError UndefinedTypeCheck UnknownType", BUG, "the schema itself is wrong"),
)

KNOWN_ERRORS: Mapping[str, Meaning] = {
    f"{module}.{name}": Meaning(classification, why) for module, names, classification, why in _TABLE for name in names.split()
}

WRAPPERS: Mapping[str, str] = {
    "django.db.utils.Error": "__cause__",
    "kombu.exceptions.OperationalError": "__cause__",
    "sqlalchemy.exc.StatementError": "orig",
    "sqlalchemy.exc.EmulatedDBAPIException": "orig",
    "urllib.error.URLError": "reason",
    "urllib3.exceptions.MaxRetryError": "reason",
}
"""Exceptions that carry the real one in an attribute: where that one is known, it decides."""
