"""Hostile records through every error policy and every serde: what bytes may come, and what must become of them."""

import random
from collections import Counter

import msgspec

from operators.core.base import Batch
from operators.core.policies import dead_letter, fail, retry, skip
from runtime.encoding.serdes import Tagged
from runtime.model.errors import SamzaError
from runtime.ports.streams import Append, StreamConfig
from samza_dsl import App, Bytes, Json, MessagePack, Options, String
from tests.faults import broken
from tests.faults.trials import Order, Verdict
from tests.simulation.crash import memory, rows_of, run_through
from tests.strategies import Event

SAFEGUARD = "any error of a serde is caught"
ROWS, ROWS_UNDER_FAIL = 400, 8
"""How many records a run reads; under the policy to fail it reads no further than the first bad one."""

DEEP = [b"[" * 100_000, b'{"a":' * 50_000, b"\x91" * 100_000, b'{"number":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]


class Upper:
    """A user's own serde, which raises what it likes."""

    type = str

    def encode(self, value):
        return value.lower().encode()

    def decode(self, data):
        if not data.isalpha():
            raise LookupError(f"{data[:9]!r} is no word")
        return data.decode().upper()


SERDES = {
    "a Struct as JSON": Json(Event),
    "any JSON": Json(),
    "ints": Json(int),
    "MessagePack": MessagePack(Event),
    "text": String(),
    "bytes": Bytes(),
    "what goes between stages": Tagged(),
    "the user's own": Upper(),
}
POLICIES = {
    "fail": fail,
    "skip": skip,
    "dead_letter": dead_letter("letters"),
    "retry": retry(2, then=dead_letter("letters")),
    "retry and skip": retry(1, then=skip),
}
LENIENT = sorted(set(POLICIES) - {"fail"})
STAGES = ("sync", "async", "repartitioned")

WRONG_TYPES = (
    *(b'{"number":"7","key":"k","at":0}', b'{"number":7,"key":7,"at":0}', b'{"number":7,"at":0}', b"null", b"[]"),
    *(b'{"number":7.5,"key":"k","at":0}', b'{"number":7,"key":"\xff","at":0}', b'"\xed\xa0\x80"', b"NaN", b"1e999"),
    *(b'{"number":7,"key":"k","at":99999999999999999999999}', b'{"number":7,"key":"k","at":-9223372036854775808}'),
)


def environment_of(batches):
    environment = memory()
    environment.create_stream("in", StreamConfig())
    for rows in batches:
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            environment.append([Append("in", 0, Batch(columns[1], columns[0]))])
    environment.end_stream("in")
    return environment


async def later(value):
    return [value]


def app_of(serde, policy, stage, **options):
    """Build a pipeline whose input has a key, a time and a policy."""
    app = App("hostile", Options(**options))
    stream = app.input("in", value=serde, key=str, timestamp=time_of, max_disorder_ms=10**6, on_error=policy)
    if stage == "async":
        stream = stream.async_flat_map(later)
    if stage == "repartitioned":
        stream = stream.partition_by(lambda value: "one", partitions=2, op_id="p")
    stream.map(lambda value: True).send_to(app.output("out", value=bool))
    return app


def time_of(value):
    return value.at if isinstance(value, Event) else 7


def is_good(serde, key, value):
    """Whether a record can be read, found out one record and one step at a time."""
    try:
        decoded = serde.decode(value)
        str(b"" if key is None else key, "utf-8")
        return value is not None and abs(time_of(decoded)) < 2**62
    except Exception:
        return False


def check(environment, batches, serde, policy):
    """Compare outputs and dead letters with what each record by itself is."""
    numbered = list(enumerate(row for rows in batches for row in rows))
    bad = [(offset, key, value) for offset, (key, value) in numbered if not is_good(serde, key, value)]
    passed = sum(len(part) for part in rows_of(environment, "out"))
    assert passed == len(numbered) - len(bad)
    if "skip" not in policy:
        assert letters_of(environment) == Counter((b"%d" % offset, key, value) for offset, key, value in bad)


def letters_of(environment):
    found = Counter()
    offset = 0
    while "letters" in environment.streams() and (read := environment.read("letters", 0, offset)):
        batch, offset = read.batch, read.next_offset
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            assert headers["stream"] == b"in" and headers["partition"] == b"0" and headers["operator"] == b"in"
            kind, _, told = headers["error"].decode().partition(": ")
            assert kind.isidentifier() and told
            found[headers["offset"], key, value] += 1
    return found


def check_failure(environment, rows, serde, error):
    """Check that a run under the policy to fail told a bad record, and committed nothing beyond it."""
    bad = [offset for offset, (key, value) in enumerate(rows) if not is_good(serde, key, value)]
    passed = sum(len(part) for part in rows_of(environment, "out"))
    assert passed == (0 if bad else len(rows)), f"{passed} of {len(rows)} passed, and {len(bad)} are bad"
    told = str(error)
    if bad:
        assert any(f" in/0 at {offset};" in told for offset in bad), f"{told!r} is at none of {bad}"
        assert "input 'in' at " in told and "on_error=skip" in told, f"{told!r} does not say what to do"
    else:
        assert error is None, f"all records are good, and it says {told!r}"


def send(batches, serde, policy, stage, **options):
    """Run records through a pipeline, and check what becomes of them."""
    environment, reads = environment_of(batches), SERDES[serde]
    told = None
    try:
        run_through(lambda: app_of(reads, POLICIES[policy], stage, **options), environment)
    except SamzaError as error:
        if policy != "fail":
            raise
        told = error
    if policy == "fail":
        check_failure(environment, [row for rows in batches for row in rows], reads, told)
    else:
        check(environment, batches, reads, policy)


# By seed


def campaign(order: Order) -> Verdict:
    """Send records, many in a run, through every serde, policy and stage in turn."""
    broken.switch_off(SAFEGUARD if order.broken else None)
    ways = [(serde, policy, stage) for stage in STAGES for policy in POLICIES for serde in SERDES]
    verdict = Verdict()
    seed = order.seed
    while verdict.done < order.times:
        serde, policy, stage = ways[seed % len(ways)]
        chance = random.Random(seed)
        rows = [hostile(chance) for _ in range(ROWS_UNDER_FAIL if policy == "fail" else ROWS)]
        try:
            send([rows], serde, policy, stage, batch_records=chance.choice((1, 7, 10_000)))
        except Exception as error:
            verdict.fail(seed, f"{serde}, {policy}, {stage}: {type(error).__name__}: {str(error)[:1_000]}")
            verdict.done -= 1
        verdict.done += len(rows)
        verdict.counts["runs"] += 1
        seed += 1
    return verdict


def hostile(chance):
    """Make the key and the value of a record that may be good, and mostly is not."""
    key = chance.choice((None, b"k", b"k", b"", b"\xff\xfe", chance.randbytes(4)))
    event = Event(chance.randrange(100), "k", chance.randrange(100))
    value = chance.choice((msgspec.json.encode, msgspec.msgpack.encode, Tagged().encode))(event)
    kind = chance.random()
    if kind < 0.3:
        return key, value
    if kind < 0.7:
        return key, _changed(chance, value)
    if kind < 0.8:
        return key, value[: chance.randrange(len(value))]
    if kind < 0.9:
        return key, chance.randbytes(chance.randrange(40))
    if kind < 0.995:
        return key, chance.choice((*WRONG_TYPES, None))
    return key, chance.choice(DEEP)


def _changed(chance, value):
    content = bytearray(value)
    for _ in range(chance.randint(1, 3)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)
