"""The errors of a Kafka client as a person reads them: what was refused, and what to write or to allow instead."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    InvalidTopicError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    NodeNotReadyError,
    PolicyViolationError,
    RecordListTooLargeError,
    RecordTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedCodecError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)

from runtime.model.errors import EnvironmentFault, Refused, Unavailable
from runtime.systems.kafka.client.client_log import NAMED, reason_of
from runtime.systems.kafka.client.topic import KafkaTopic

TOO_LARGE = MessageSizeTooLargeError, RecordTooLargeError, RecordListTooLargeError
UNPROVEN = (
    *(AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError),
)
DENIED = (
    *(TopicAuthorizationFailedError, GroupAuthorizationFailedError, ClusterAuthorizationFailedError),
    TransactionalIdAuthorizationFailed,
)
OLD = UnsupportedVersionError, IncompatibleBrokerVersion
LASTING = *TOO_LARGE, *UNPROVEN, *DENIED, *OLD, UnsupportedCodecError, InvalidTopicError, PolicyViolationError
"""The errors that would come again if it were asked anew."""
UNREACHED = KafkaConnectionError, NodeNotReadyError
OPERATIONS = {"read": "Read", "written": "Write", "made": "Create", "looked at": "Describe"}
"""The right that a client needs, by what it does to a topic."""
PROOF = "security_protocol, sasl_mechanism, and the user, password or token, in the options"
ELSE = "Look whether its brokers run, and let this client in."
BY_REASON = {
    "UnsupportedSaslMechanism": "That listener takes another sasl_mechanism: look at it in the options.",
    "IllegalSaslState": "That listener takes no SASL: look at security_protocol in the options.",
    "Sasl": f"The brokers do not take what this client says to prove who it is: look at {PROOF}.",
    "token provider": "Look at sasl_oauth_token_provider in the options.",
    "Authentication": f"The brokers do not take what this client says to prove who it is: look at {PROOF}.",
    "Name or service": "No machine is known by that name here: look at how the address is written.",
    "nodename nor servname": "No machine is known by that name here: look at how the address is written.",
    "Connect call failed": "Nothing answers there: look at host and port, and whether its brokers run.",
    "certificate": "Look at ssl_cafile in the options: it has to have who has signed the brokers' certificates.",
    "SSL": "Look at security_protocol in the options: that listener may not speak TLS, or another version of it.",
    "closed": "That listener may want TLS or SASL, or a certificate: look at security_protocol in the options.",
    "Reset": "That listener may not speak TLS: look at security_protocol in the options.",
}
"""The advice, by what is in the reason why no broker could be reached."""


def kafka_fault(topic: KafkaTopic, what: str, error: BaseException) -> EnvironmentFault:
    """Return what is wrong where something could not be done to a topic; `Unavailable` where asking anew may help.

    >>> topic = KafkaTopic("kafka://broker:9092/flights")
    >>> str(kafka_fault(topic, "read", TopicAuthorizationFailedError("flights"))).partition(": ")[0]
    "The brokers at broker:9092 don't let this client read the topic 'flights'"
    """
    if isinstance(error, DENIED):
        return Refused(_denial(topic, what, error))
    told = str(error) or type(error).__name__
    # aiokafka's own error says only that no broker was reached; why is in its log alone, which is listened to.
    if isinstance(error, UNREACHED):
        told = reason_of(topic.bootstrap) or told
    kind = Refused if isinstance(error, LASTING) or _is_proof(told) else Unavailable
    return kind(f"{topic.address} can't be {what}: {told.rstrip('.')}. {_instead(error, told)}")


def _instead(error: BaseException, told: str) -> str:
    if isinstance(error, TOO_LARGE):
        return "A record is larger than the topic's max.message.bytes: raise that, or drop the record."
    if isinstance(error, UNPROVEN):
        return f"The brokers do not take what this client says to prove who it is: look at {PROOF}."
    if told.startswith(NAMED) and not _is_proof(told):
        return "So the brokers name themselves (advertised.listeners): it has to be reached from here."
    if isinstance(error, UnsupportedCodecError):
        return "Its records are compressed by what is not installed here: pip install cramjam."
    if isinstance(error, TimeoutError):
        return (
            "Look whether its brokers run, and whether as many replicas of what is written are in sync as "
            "min.insync.replicas asks for."
        )
    if isinstance(error, OLD):
        return "The brokers are older than what is asked of them: Kafka 2.5 or later is needed."
    return next((instead for part, instead in BY_REASON.items() if part in told), ELSE)


def _is_proof(told: str) -> bool:
    return "SaslAuthenticationFailed" in told or "UnsupportedSaslMechanism" in told or "AuthenticationFailed" in told


def _denial(topic: KafkaTopic, what: str, error: BaseException) -> str:
    """Return what this client is not allowed to do, and the command that allows it."""
    tool = f"kafka-acls.sh --bootstrap-server {topic.bootstrap} --add --allow-principal User:NAME"
    names = _names(error.args)
    if isinstance(error, GroupAuthorizationFailedError):
        name = next(iter(names), "GROUP")
        doing, rights = f"use the group {name!r}", f"--group {name} --operation Read"
    elif isinstance(error, TransactionalIdAuthorizationFailed):
        name = next(iter(names), "ID")
        doing = f"use the transactional id {name!r}"
        rights = f"--transactional-id {name} --resource-pattern-type prefixed --operation Write --operation Describe"
    elif isinstance(error, ClusterAuthorizationFailedError):
        doing = "do that to the cluster"
        rights = f"--cluster --operation {OPERATIONS.get(what, 'Create')}"
    else:
        names = names or [topic.name]
        operation = OPERATIONS.get(what, "All") if topic.name in names else "All"
        verb = {"Read": "read", "Write": "write to", "Create": "make", "Describe": "look at"}.get(operation, "use")
        doing = f"{verb} the topic{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
        rights = f"{' '.join(f'--topic {name}' for name in names)} --operation {operation}"
    return f"The brokers at {topic.bootstrap} don't let this client {doing}: allow it, as by {tool} {rights}"


def _names(arguments: Iterable[object]) -> list[str]:
    """Return what an error names: names, or collections of them; what brokers say in sentences is none.

    >>> _names(["flights"]), _names([{"a"}]), _names(["Authorization failed."])
    (['flights'], ['a'], [])
    """
    found: list[str] = []
    for one in arguments:
        found += [one] if isinstance(one, str) else sorted(map(str, one)) if isinstance(one, set | list | tuple) else []
    return [name for name in found if " " not in name]
