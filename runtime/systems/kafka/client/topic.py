"""The address of a Kafka topic that a stream is bound to, and the options by which clients reach it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from urllib.parse import parse_qsl, urlsplit

from operators.core.wording import shown
from runtime.model.errors import SamzaError

SCHEME = "kafka://"
REGISTRY = "samza-dsl-streams"
"""The topic that tells what each stream was made with, behind the prefix of a cluster that is shared."""
COMPRESSIONS = ("gzip", "snappy", "lz4", "zstd")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BROKER = re.compile(r"([^\s:\[\]]+|\[[0-9a-fA-F:.%]+\])(:[0-9]{1,5})?")
_PORT = re.compile(r":[0-9]{1,5}$")
USUAL_PORT = 9092
_TLS = {"ssl_cafile": "cafile", "ssl_certfile": "certfile", "ssl_keyfile": "keyfile", "ssl_password": "password"}
_SECRET = "ssl_password"
MOST_PORT = 65_535
_OPTIONS = {
    *("security_protocol", "ssl_context", *_TLS, "client_id", "request_timeout_ms", "metadata_max_age_ms"),
    *("connections_max_idle_ms", "retry_backoff_ms", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"),
    *("sasl_oauth_token_provider", "sasl_kerberos_service_name", "sasl_kerberos_domain_name"),
}
_OURS = re.compile(
    r"bootstrap_servers|api_version|group_id|transactional_id|enable_\w+|isolation_level|acks|auto_\w+|loop"
)
"""Options by which exactly-once is kept, or that an address says."""


def check_is_option(name: str) -> None:
    """Refuse what is no option of Kafka's clients, or one that the library sets: raises SamzaError.

    >>> check_is_option("sasl_mechanim")
    Traceback (most recent call last):
    runtime.model.errors.SamzaError: a Kafka client has no option 'sasl_mechanim' that can be given here; did you mean \
'sasl_mechanism'? See docs/kafka.md
    """
    if name in _OPTIONS:
        return
    if _OURS.fullmatch(name):
        raise SamzaError(f"the option {name!r} of Kafka clients is set by the library itself: leave it out")
    nearest = get_close_matches(name, _OPTIONS, n=1, cutoff=0.0)[0]
    raise SamzaError(
        f"a Kafka client has no option {name!r} that can be given here; did you mean {nearest!r}? See docs/kafka.md"
    )


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of a Kafka cluster, to bind a stream to.

    `start` is where reading begins without a checkpoint: "earliest", "latest", or a time (ms since the epoch, UTC).
    `compression` is of what is written: "gzip", "snappy", "lz4" or "zstd". `options` are aiokafka's own, for TLS and
    SASL (`security_protocol`, `sasl_mechanism`, `sasl_plain_username`, ...; `ssl_cafile`, `ssl_certfile`, `ssl_keyfile`
    and `ssl_password` in place of an `ssl_context`; `sasl_oauth_token_provider` may be a function, or "module:name");
    they are shown nowhere. Raises SamzaError for what is none.

    >>> KafkaTopic("kafka://broker:9092/flights", options={"sasl_plain_password": "secret"})
    KafkaTopic(address='kafka://broker:9092/flights', start='earliest', compression=None)
    >>> KafkaTopic("kafka://broker:9092/flights").name
    'flights'
    """

    address: str
    start: str | int = "earliest"
    compression: str | None = None
    options: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        _check_text(self.address, "KafkaTopic", "kafka://host:9092/flights")
        parts = urlsplit(self.address)
        if "@" in parts.netloc:
            raise SamzaError("the address of a Kafka topic has no user or password: give them as options={...}")
        if not self.address.startswith(SCHEME) or not parts.netloc or not _NAME.fullmatch(self.name) or parts.query:
            raise SamzaError(
                f"{self.address!r} names no Kafka topic: write kafka://host:9092/topic, with several hosts as "
                'kafka://one:9092,two:9092/topic; a topic has letters, digits, ".", "_" and "-"'
            )
        _check_brokers(self.address, "write host:port, as in kafka://host:9092/topic")
        if not (self.start in ("earliest", "latest") or (type(self.start) is int and self.start >= 0)):
            raise SamzaError(f'start={self.start!r}: reading begins at "earliest", "latest" or a time in ms')
        if self.compression not in (None, *COMPRESSIONS):
            raise SamzaError(f"compression={self.compression!r}: Kafka knows {', '.join(COMPRESSIONS)}, or None")
        for name in sorted(self.options):
            check_is_option(name)
        for name, value in self.options.items():
            if name.endswith("_ms") and not (type(value) is int and value >= 0):
                raise SamzaError(f"{name}={value!r} in the options: it is a whole number of milliseconds, as 30_000")

    @property
    def bootstrap(self) -> str:
        """The brokers that are asked first."""
        return urlsplit(self.address).netloc

    @property
    def name(self) -> str:
        """The topic's name in its cluster."""
        return urlsplit(self.address).path.removeprefix("/")

    @property
    def known_by(self) -> frozenset[object]:
        """The topic by each of its brokers that are named: two addresses with one in common are of one topic."""
        return known_by(self.address, self.name)

    def is_at(self, environment: str) -> bool:
        """Whether it is a topic of the cluster at an address, which may be a directory's instead.

        >>> KafkaTopic("kafka://a:9092/t").is_at("kafka://a"), KafkaTopic("kafka://a:9092/t").is_at("data")
        (True, False)
        """
        return environment.startswith(SCHEME) and not self.known_by.isdisjoint(known_by(environment, self.name))

    def client(self) -> dict[str, object]:
        """Return the arguments of every client of this cluster; raises SamzaError for what proves nothing."""
        from runtime.systems.kafka.client.tokens import TOKEN, check_options, provider_of

        check_options(self.options)
        said = {name: value for name, value in self.options.items() if name not in _TLS}
        if said.get(TOKEN) is not None:
            said[TOKEN] = provider_of(said[TOKEN])
        files = {_TLS[name]: value for name, value in self.options.items() if name in _TLS}
        if files or ("SSL" in str(said.get("security_protocol")) and "ssl_context" not in said):
            from aiokafka.helpers import create_ssl_context

            try:
                said["ssl_context"] = create_ssl_context(**files)
            except OSError as error:
                named = [f"{name}={self.options[name]}" for name in _TLS if name in self.options and name != _SECRET]
                raise SamzaError(f"{', '.join(named)}: what is there can't be used for TLS: {error}") from error
        return {"bootstrap_servers": self.bootstrap, **said}


def known_by(address: str, name: str) -> frozenset[object]:
    """Return a topic by each broker of an address.

    >>> known_by("kafka://a:9092,b", "t") & known_by("kafka://B:9092", "t")
    frozenset({('b:9092', 't')})
    """
    brokers = urlsplit(address.lower()).netloc.split(",")
    return frozenset((one if _PORT.search(one) else f"{one}:{USUAL_PORT}", name) for one in brokers)


@dataclass(frozen=True)
class KafkaCluster:
    """A Kafka cluster, to be the environment of a run; `options` are as a `KafkaTopic` has them.

    Several teams share a cluster by a `prefix`, as in "kafka://host:9092?prefix=payments-": with it begin the names of
    all topics that are none of the streams, of groups and of transactional ids. So do the names of their applications.

    >>> KafkaCluster("kafka://broker:9092?prefix=payments-").registry
    'payments-samza-dsl-streams'
    >>> KafkaCluster("kafka://broker:9092", options={"sasl_plain_password": "secret"})
    KafkaCluster(address='kafka://broker:9092')
    """

    address: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)
    prefix: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _check_text(self.address, "KafkaCluster", "kafka://host:9092")
        address, _, query = self.address.partition("?")
        if query:
            said = dict(parse_qsl(query, keep_blank_values=True))
            if said.keys() != {"prefix"} or self.prefix not in ("", said["prefix"]):
                raise SamzaError(f"{address}?{query}: the address of a cluster says prefix=, once, and nothing else")
            object.__setattr__(self, "address", address)
            object.__setattr__(self, "prefix", said["prefix"])
        if self.prefix and not _NAME.fullmatch(self.prefix):
            raise SamzaError(f"prefix={self.prefix!r} begins no topic: write letters, digits, '.', '_' and '-'")
        parts = urlsplit(self.address)
        if "@" in parts.netloc:
            raise SamzaError("the address of a Kafka cluster has no user or password: give them as options={...}")
        instead = "write kafka://host:9092, with several hosts as kafka://one:9092,two:9092"
        if not self.address.startswith(SCHEME) or not parts.netloc:
            raise SamzaError(f"{self.address!r} names no Kafka cluster: {instead}")
        if parts.path not in ("", "/"):
            raise SamzaError(f"{self.address!r} names a topic: an environment is a cluster, as in kafka://host:9092")
        _check_brokers(self.address, instead)
        self.topic("any")  # whose options have to be those of clients

    @property
    def registry(self) -> str:
        """The name of the topic that tells what streams were made with."""
        return f"{self.prefix}{REGISTRY}"

    def check_app(self, app: str) -> None:
        """Raise SamzaError for an application whose topics would not begin with the prefix."""
        if not app.startswith(self.prefix):
            raise SamzaError(
                f"the cluster {self.address} is used under the prefix {self.prefix!r}, with which topics of {app!r} "
                f"would not begin; write instead: App('{self.prefix}{app}'), or another prefix"
            )

    def topic(self, name: str) -> KafkaTopic:
        """Return one of its topics."""
        return KafkaTopic(f"{self.address.rstrip('/')}/{name}", options=self.options)


def _check_text(address: object, kind: str, instead: str) -> None:
    if not isinstance(address, str):
        raise SamzaError(f"{kind}({shown(address)}) has no address; write instead: {kind}({instead!r})")


def _check_brokers(address: str, instead: str) -> None:
    wrong = next((one for one in urlsplit(address).netloc.split(",") if not _BROKER.fullmatch(one)), None)
    if wrong is not None:
        raise SamzaError(f"{address!r}: {wrong!r} is no broker: {instead}")
    for one in urlsplit(address).netloc.split(","):
        port = one.rpartition("]")[2].rpartition(":")[2]
        if port.isdecimal() and ":" in one and not 0 < int(port) <= MOST_PORT:
            raise SamzaError(f"{address!r}: {one!r} is no broker: a port is a number from 1 to {MOST_PORT:,}")


def cluster_of(said: str | KafkaCluster | None) -> KafkaCluster | None:
    """Return the cluster that was said to be a run's environment, be it by its address; raises SamzaError.

    >>> cluster_of("kafka://broker:9092")
    KafkaCluster(address='kafka://broker:9092')
    """
    if said is None or isinstance(said, KafkaCluster):
        return said
    if not isinstance(said, str):
        instead = 'environment="kafka://host:9092", or a KafkaCluster of that address'
        raise SamzaError(f"environment={said!r} is no cluster; write instead: {instead}")
    return KafkaCluster(said)


def address_of(said: str | KafkaCluster | None) -> str:
    """Return the address of a run's environment, or "" where it is no cluster; raises SamzaError."""
    cluster = cluster_of(said)
    return "" if cluster is None else cluster.address


def topic_of(what: object) -> KafkaTopic | None:
    """Return the topic that a stream is bound to, or None where that is something else; raises SamzaError.

    In an address, `start` and `compression` may be said as in a link.

    >>> topic_of("kafka://broker:9092/flights?start=latest&compression=zstd")
    KafkaTopic(address='kafka://broker:9092/flights', start='latest', compression='zstd')
    >>> topic_of("flights.jsonl")
    """
    if isinstance(what, KafkaTopic) or not (isinstance(what, str) and what.startswith(SCHEME)):
        return what if isinstance(what, KafkaTopic) else None
    address, _, query = what.partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    if not said.keys() <= {"start", "compression"}:
        raise SamzaError(f"{address}?...: an address says start= and compression=; other options go into options={{}}")
    start = _moment(said["start"]) if "start" in said else "earliest"
    return KafkaTopic(address, start, said.get("compression"))


def beside(topic: KafkaTopic, name: str) -> KafkaTopic:
    """Return another topic of the same cluster.

    >>> beside(KafkaTopic("kafka://broker:9092/flights"), "delays").address
    'kafka://broker:9092/delays'
    """
    return replace(topic, address=f"{SCHEME}{topic.bootstrap}/{name}")


def _moment(text: str) -> str | int:
    if text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    if at.tzinfo is None:
        raise SamzaError(f"start={text} has no time zone: write {text}Z for UTC")
    return int(at.timestamp() * 1_000)
