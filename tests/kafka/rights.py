"""A broker that lets in who it knows, and has each do only what its rules say."""

import asyncio
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest

from samza_dsl import KafkaCluster
from tests.kafka.brokers import HOST, Brokers

USERS = 40
PASSWORD = "not-to-be-seen-pa55"
RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional id": 5}
OPERATIONS = {"all": 2, "read": 3, "write": 4, "create": 5, "delete": 6, "describe": 8, "describe configs": 10}
LITERAL, PREFIXED, DENY, ALLOW = 3, 4, 2, 3
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@dataclass
class Guarded:
    """The broker, and the ports of its listeners; who comes by the plain one may do everything."""

    brokers: Brokers
    ports: dict[str, int]
    users: int = 0

    @property
    def open(self) -> str:
        """Where everything is allowed."""
        return f"kafka://{self.brokers.bootstrap}"

    @property
    def address(self) -> str:
        """Where users prove who they are by a password."""
        return f"kafka://{HOST}:{self.ports['PASSWORD']}"

    @property
    def token_address(self) -> str:
        """Where they do so by a token."""
        return f"kafka://{HOST}:{self.ports['TOKEN']}"

    def user(self, *denied: tuple[str, str, str]) -> dict[str, Any]:
        """Return the options of a new user, who may do everything but operations on resources that begin so."""
        name, self.users = f"u{self.users}", self.users + 1
        rules = [(kind, "kafka-cluster" if kind == "cluster" else "*", LITERAL, "all", ALLOW) for kind in RESOURCES]
        rules += [(kind, what, LITERAL if kind == "cluster" else PREFIXED, how, DENY) for kind, what, how in denied]
        asyncio.run(self._rule(name, rules))
        how = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        return {**how, "sasl_plain_username": name, "sasl_plain_password": PASSWORD}

    def cluster(self, *denied: tuple[str, str, str]) -> KafkaCluster:
        """Return the cluster as such a user reaches it."""
        return KafkaCluster(self.address, options=self.user(*denied))

    def deny(self, options: dict[str, Any], *denied: tuple[str, str, str]) -> None:
        """Take rights away from a user."""
        rules = [(kind, what, LITERAL, how, DENY) for kind, what, how in denied]
        asyncio.run(self._rule(options["sasl_plain_username"], rules))

    async def _rule(self, name: str, rules: list[tuple[str, str, int, str, int]]) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.brokers.bootstrap)
        await admin.start()
        try:
            for kind, what, pattern, how, permission in rules:
                place = RESOURCES[kind], what, pattern
                await admin._send_request(CreateAclsRequest(*place, f"User:{name}", "*", OPERATIONS[how], permission))
        finally:
            await admin.close()


def guarded(brokers: Brokers, ports: dict[str, int]) -> Guarded:
    """Have a cluster of one broker, before it starts, guard what it has."""
    users = " ".join(f'user_u{number}="{PASSWORD}"' for number in range(USERS))
    (node,) = brokers.nodes
    outside = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PASSWORD:SASL_PLAINTEXT,TOKEN:SASL_PLAINTEXT"
    node.said |= {
        "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port},{outside}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port},{outside}",
        "listener.security.protocol.map": protocols,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.password.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.password.plain.sasl.jaas.config": f"{PLAIN} required {users};",
        # A connection lasts no longer than its token, or this: whoever goes on asks for another token.
        "listener.name.token.oauthbearer.connections.max.reauth.ms": "4000",
        "listener.name.token.oauthbearer.sasl.jaas.config": f'{OAUTH} required unsecuredLoginStringClaim_sub="x";',
    }
    return Guarded(brokers, ports)
