"""What does SQS itself say about a message? Of a retry, id and attributes are the original's; what SQS counts is the copy's."""

from unpoison.brokers.sqs import envelope
from unpoison.brokers.sqs.envelope import GROUP, Raw, Receipt, attribute_bytes
from unpoison.model.message import Delivery, Native


def native(delivery: Delivery) -> Native:
    receipt: Receipt = delivery.receipt
    seen = envelope.look(receipt.raw)
    theirs = envelope.foreign_attributes(receipt.raw, seen.envelope)
    headers = [(name, attribute_bytes(value)) for name, value in theirs.items()]
    headers += [(name, text.encode()) for name, text in seen.envelope.headers.items()]
    attributes = {name: _typed(value, content) for (name, value), (_, content) in zip(theirs.items(), headers, strict=False)}
    return Native(
        None if seen.key is None else seen.key.encode(),
        tuple(headers),
        {
            "message_id": seen.stamp,
            "message_group": receipt.raw["Attributes"].get(GROUP),
            "timestamp": _sent_at(receipt.raw),
            "message_attributes": attributes,
            "system_attributes": dict(receipt.raw["Attributes"]),
        },
    )


def _typed(value: envelope.Raw, content: bytes) -> dict[str, str | bytes]:
    """An attribute with its type, in SQS's own words."""
    if "StringValue" in value:
        return {"DataType": str(value.get("DataType", "String")), "StringValue": str(value["StringValue"])}
    return {"DataType": str(value.get("DataType", "Binary")), "BinaryValue": content}


def _sent_at(raw: Raw) -> float | None:
    moment = envelope.sent_at(raw)
    return moment / 1000 if moment else None
