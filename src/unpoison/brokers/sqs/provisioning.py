"""What must an administrator create in SQS, and what must the app be allowed to do there?"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from shlex import quote

from unpoison.brokers.sqs import topology
from unpoison.brokers.sqs.connection import Connection
from unpoison.brokers.sqs.names import Names, check_name, native_names
from unpoison.brokers.sqs.topology import QUEUES
from unpoison.brokers.sqs.url import Address, address
from unpoison.errors import UnpoisonError
from unpoison.port.provisioning import Needs, Step, no_user

SETUP = """\
# The aws program must be on the PATH, with the credentials of an administrator where it looks for them (AWS_PROFILE …).
sqs() {{ aws {options}sqs "$@"; }}
create() {{  # NAME ATTRIBUTES; what exists stays as it is
    sqs get-queue-url --queue-name "$1" > /dev/null 2>&1 || sqs create-queue --queue-name "$1" --attributes "$2" > /dev/null
}}
arn() {{  # NAME
    url=$(sqs get-queue-url --queue-name "$1" --query QueueUrl --output text)
    sqs get-queue-attributes --queue-url "$url" --attribute-names QueueArn --query Attributes.QueueArn --output text
}}"""

ACTIONS = (
    "sqs:GetQueueUrl",
    "sqs:GetQueueAttributes",
    "sqs:SendMessage",
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
)
"""What an app with create=False does with each of its queues. A batch needs the right to do it once."""

ROLE = "role/"
LONGEST_POLICY = {"user": 2_048, "role": 10_240}
"""Characters that IAM takes in the inline policies of a user or a role."""

_ARN = "ARN-FROM-THE-SHELL"


def needs(url: str, sources: Sequence[str], user: str | None = None) -> Needs:
    where = address(url)
    names = [check_name(where, source) for source in sources]
    there, unseen = _look(where, [name for each in names for name in _queues(each).values()])
    steps = [step for each in names for step in _of_source(where, each, url, there)]
    notes = [] if user else [no_user(f"an IAM user, or {ROLE}NAME for a role")]
    if user and names:
        step = _rights(names, user)
        steps.append(step)
        kind, longest = _kind(user), LONGEST_POLICY[_kind(user)]
        if len(step.commands[-1]) > longest:
            notes.append(
                f"IAM may find the policy too long for a {kind} ({longest:,} characters): then make it a managed policy."
            )
    theirs = where._replace(profile=None)  # the profile is the administrator's own
    setup = SETUP.format(options="".join(f"{option} " for option in topology.options(theirs)))
    return Needs(where.shown, steps, tuple(setup.splitlines()), unseen, tuple(notes))


def policy(names: Sequence[Names], place: str) -> dict[str, object]:
    """The IAM policy for these sources. `place` is the ARN of a queue without its name: arn:aws:sqs:region:account"""
    resources = [f"{place}:{name}" for each in names for name in _queues(each).values()]
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(ACTIONS), "Resource": resources}]}


def _queues(names: Names) -> dict[str, str]:
    """The names of its queues, by what they are for; the DLQ first, since others name it."""
    kinds = sorted((kind for kind in QUEUES if kind != "later" or names.is_fifo), key=lambda kind: kind != "dlq")
    return {kind: getattr(names, kind) for kind in kinds}


def _of_source(where: Address, names: Names, url: str, there: Mapping[str, bool]) -> Iterator[Step]:
    purposes = native_names(url, names.source, consumed=True)
    for kind, name in _queues(names).items():
        attributes = quote(json.dumps(topology.queue_attributes(names, kind, where, topology.redrive(_ARN))))
        lines = [f"create {name} {_in_shell(attributes, 'dlq')}"]
        if kind in topology.REDRIVEN:
            lines.insert(0, f"dlq=$(arn {names.dlq})")
        yield Step("queue", name, f"for source {names.source!r}: {purposes[name]}.", tuple(lines), there.get(name, False))


def _rights(names: Sequence[Names], user: str) -> Step:
    kind, name = _kind(user), user.removeprefix(ROLE)
    document = _in_shell(quote(json.dumps(policy(names, _ARN))), "place")
    lines = (
        f"place=$(arn {names[0].dlq})",
        "place=${place%:*}  # arn:aws:sqs:region:account",
        f"aws iam put-{kind}-policy --{kind}-name {quote(name)} --policy-name unpoison --policy-document {document}",
    )
    return Step("rights", user, f"to use these queues. The {kind} must exist; its policy 'unpoison' is replaced.", lines)


def _kind(user: str) -> str:
    return "role" if user.startswith(ROLE) else "user"


def _in_shell(quoted: str, variable: str) -> str:
    """A quoted text in which the shell fills in what only the server knows."""
    return quoted.replace(_ARN, f"'\"${variable}\"'")


def _look(where: Address, names: Sequence[str]) -> tuple[dict[str, bool], str]:
    """Which of these queues exist, and why that is not known."""
    with closing(Connection(where)) as connection:
        try:
            urls = topology.Topology(connection, create=False).urls(names)
            return {name: url is not None for name, url in urls.items()}, ""
        except UnpoisonError as error:
            return {}, str(error)
