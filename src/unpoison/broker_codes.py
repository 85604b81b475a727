"""What does the error code of a message broker mean: AMQP, Kafka, JetStream? None: it does not tell, as in `status_codes`."""

from unpoison.classification import PERMANENT, THROTTLED, TRANSIENT, Meaning

# Of a channel. Those of a connection (320 forced, 403 login refused, 530 no such virtual host) say nothing about the message.
_AMQP_TRANSIENT = {
    313: "nobody consumes there",
    405: "another connection has it to itself",
    506: "the server is short of something",
}
_AMQP_TRANSIENT |= {320: "the server is shutting down", 541: "the server had an internal error"}
_AMQP_PERMANENT = {311: "the message is too large", 312: "no queue takes it", 403: "the server does not allow it"}
_AMQP_PERMANENT |= {
    404: "there is no such queue or exchange",
    406: "the server refuses it as it is",
    540: "the server cannot do that",
}

# Numbers of the Kafka protocol; those below -1 are librdkafka's own.
_KAFKA_TRANSIENT = {
    "the servers cannot be reached, or did not answer in time": {-195, -193, -192, -187, -185, -181, -166, -153, 7, 8, 13},
    "too much waits to be sent": {-184},
    "the topic or partition is not known yet, or moves": {-190, -188, 2, 3, 5, 6, 9, 41, 56, 72, 74, 75, 78, 80, 83, 100, 103},
    "the group or transaction is being moved or rebalanced": {-180, -142, 14, 15, 16, 22, 25, 27, 51, 79, 88, 110, 113, 120},
    "too few replicas are in sync": {-183, 19, 20},
    "the login was refused, which is not the message's fault": {-169, 58},
}
_KAFKA_PERMANENT = {
    "the message is too large": {4, 10, 12, 18},
    "the topic, timestamp or record is not valid": {17, 32, 37, 38, 39, 40, 42, 87},
    "the server does not allow it": {29, 30, 31, 44, 53, 65},
    "the value cannot be written or read": {-199, -198, -162, -161, -160, -159},
    "the client or server does not support this": {-186, -170, -165, 21, 35, 43, 76},
    "there is one already": {36},
}
_KAFKA_QUOTA = {89}

_WRONG_LAST_SEQUENCE = frozenset({10070, 10071, 10164})
"""Error codes of JetStream: the stream or subject has moved on since it was read."""


def amqp(code: int) -> Meaning | None:
    """The reply code with which a channel was closed."""
    if code in _AMQP_TRANSIENT:
        return Meaning(TRANSIENT, f"AMQP {code}, {_AMQP_TRANSIENT[code]}")
    if code in _AMQP_PERMANENT:
        return Meaning(PERMANENT, f"AMQP {code}, {_AMQP_PERMANENT[code]}")
    return None


def kafka(code: int) -> Meaning | None:
    if code in _KAFKA_QUOTA:
        return Meaning(THROTTLED, f"Kafka error {code}, a quota is used up")
    for classification, table in ((TRANSIENT, _KAFKA_TRANSIENT), (PERMANENT, _KAFKA_PERMANENT)):
        for why, codes in table.items():
            if code in codes:
                return Meaning(classification, f"Kafka error {code}, {why}")
    return None


def jetstream(code: int, detail: int | None) -> Meaning | None:
    """`code` follows HTTP, `detail` is JetStream's own."""
    if detail in _WRONG_LAST_SEQUENCE:
        return Meaning(TRANSIENT, f"JetStream error {detail}, somebody else was faster")
    if code == 429:
        return Meaning(THROTTLED, f"JetStream {code} asks to slow down")
    if code >= 500 or code in (408, 409):
        return Meaning(TRANSIENT, f"JetStream {code} is a server that may recover")
    return Meaning(PERMANENT, f"JetStream {code} refuses the request, and would refuse it again") if code >= 400 else None
