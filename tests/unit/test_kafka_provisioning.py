"""When does a user have the rights already that plan-topology would print?"""

import shlex

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from unpoison.brokers.kafka.provisioning import Existing, Right, granted

READ = (AclOperation.READ,)
TOPICS = Right(ResourceType.TOPIC, ("orders", "orders.dlq"), READ, "to read.")
OPERATORS = Right(ResourceType.GROUP, ("billing.operators.",), READ, "to look.", is_prefix=True)
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


def acl(name, pattern=LITERAL, user="User:shop", operation=AclOperation.READ, kind=ResourceType.TOPIC, host="*", allow=True):
    permission = AclPermissionType.ALLOW if allow else AclPermissionType.DENY
    return AclBinding(kind, name, pattern, user, host, operation, permission)


@pytest.mark.parametrize(
    ("acls", "has_it"),
    [
        ([acl("orders"), acl("orders.dlq")], True),
        ([acl("orders")], False),
        ([acl("orders", PREFIXED)], True),
        ([acl("orders."), acl("orders")], False),
        ([acl("*")], True),
        ([acl("*", user="User:*", operation=AclOperation.ALL)], True),
        ([acl("*", user="User:guest")], False),
        ([acl("*", operation=AclOperation.WRITE)], False),
        ([acl("*", kind=ResourceType.GROUP)], False),
        ([acl("*", host="10.0.0.1")], False),
        ([acl("*", allow=False)], False),
        (None, False),
    ],
)
def test_topics(acls, has_it):
    assert granted(TOPICS, "shop", Existing({}, acls)).exists is has_it


@pytest.mark.parametrize(
    ("name", "pattern", "has_it"),
    [
        ("billing.operators.", PREFIXED, True),
        ("billing.", PREFIXED, True),
        ("*", LITERAL, True),
        ("billing.operators.", LITERAL, False),
        ("billing.operators.me", PREFIXED, False),
    ],
)
def test_a_prefix_is_covered_by_one_that_is_as_short(name, pattern, has_it):
    there = Existing({}, [acl(name, pattern, kind=ResourceType.GROUP)])
    assert granted(OPERATORS, "shop", there).exists is has_it


def test_the_command():
    (command,) = granted(OPERATORS, "o'neill", Existing({})).commands
    assert shlex.split(command)[:4] == ["acls", "--add", "--allow-principal", "User:o'neill"]
    assert command.endswith(" --operation Read --group billing.operators. --resource-pattern-type prefixed")
