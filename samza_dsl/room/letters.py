"""Dead letters as a person reads them, and their way back: a value is mended, and sent to an input again."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import msgspec

from operators.core.base import Batch
from planner.model.plan import Plan
from planner.model.stored_forms import ReadForm, StoredForm
from runtime.encoding.serdes import LAST_TAG, Natural
from runtime.model.errors import SamzaError
from runtime.ports.environment import Environment
from runtime.ports.streams import Append
from runtime.stage.outputs import LATE, OF_RECORD
from samza_dsl.data.json_lines import partition_for
from samza_dsl.data.records import StoredRecord, last_records, rows_of
from samza_dsl.room.letter_forms import check_readable, plain_value, written_for
from samza_dsl.view.readable import text_of, time_of

Form = Literal["text", "hex", "none"]
MOST_LETTERS = 100
"""The newest letters of a stream that are shown."""
MOST_SHOWN = 64 << 10
"""The characters of a value that can be mended on a page; what is longer can be sent again as it is."""
SENT_AGAIN = "redriven-from"
"""The header of a record that was sent again, which says where its dead letter lies."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: where it lies, its value as it can be mended, and what was wrong with it.

    The value is text, bytes in hex where it is none, or nothing. `read` shows it as a reader of such bytes sees it.
    """

    stream: str
    partition: int
    offset: int
    at: str
    key: str
    value: str
    form: Form
    read: str
    is_whole: bool
    operator: str
    error: str
    origin: str
    to: str
    sent: str = ""

    @property
    def place(self) -> str:
        """The letter's place."""
        return place_of(self.stream, self.partition, self.offset)


class Redrive(msgspec.Struct, frozen=True, kw_only=True):
    """The wish to send a dead letter to an input again, with another value where that was mended."""

    stream: str
    partition: int
    offset: int
    to: str
    value: str | None = None
    form: Form = "text"


def place_of(stream: str, partition: int, offset: int) -> str:
    """Return the place of a record.

    >>> place_of("bad", 0, 7)
    'bad/0/7'
    """
    return f"{stream}/{partition}/{offset}"


def inputs_of(plan: Plan) -> list[str]:
    """Return the streams to which a letter can be sent again."""
    return [stream.name for stream in plan.streams if stream.role in ("input", "table")]


def letters(environment: Environment, plan: Plan, sent: dict[str, str]) -> list[Letter]:
    """Return the newest dead letters of an application, the newest first; `sent` tells which were sent again, when."""
    known = environment.streams()
    found: list[Letter] = []
    for stream in plan.streams:
        if stream.role == "dead_letter" and stream.name in known:
            partitions = range(known[stream.name].partitions)
            records = last_records(environment, stream.name, partitions, MOST_LETTERS)
            found += (_letter(stream.name, one, plan, sent) for one in records)
    return sorted(found, key=lambda one: one.at, reverse=True)


def _letter(stream: str, record: StoredRecord, plan: Plan, sent: dict[str, str]) -> Letter:
    said = _said_by(record)
    inputs = inputs_of(plan)
    # Behind a repartition, or an operator that emits, a record is no longer one of an input.
    to = said["stream"] if said.get("stream") in inputs else ""
    try:
        value, form = _shown(_rewritten(plan, record, to or next(iter(inputs), "")).value)
    except SamzaError:  # it can't be sent as it is: the page shows what there is
        value, form = _shown(record.value)
    origin = " ".join(
        words
        for words in (
            f"{said['stream']}/{said['partition']}" if "partition" in said else said.get("stream", ""),
            f"at {said['offset']}" if "offset" in said else "",
        )
        if words
    )
    return Letter(
        stream=stream,
        partition=record.partition,
        offset=record.offset,
        at=time_of(record.timestamp),
        key=text_of(record.key),
        value=value[:MOST_SHOWN],
        form=form,
        read=text_of(record.value)[:MOST_SHOWN],
        is_whole=len(value) <= MOST_SHOWN,
        operator=said.get("operator", ""),
        error=said.get("error", ""),
        origin=origin,
        to=to,
        sent=sent.get(place_of(stream, record.partition, record.offset), ""),
    )


def _said_by(record: StoredRecord) -> dict[str, str]:
    """Return what the headers of a dead letter say, as text: those that have a value, as its record's need not."""
    return {name: said.decode("utf-8", "replace") for name, said in record.headers.items() if said is not None}


def _shown(value: bytes | None) -> tuple[str, Form]:
    if value is None:
        return "", "none"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex(), "hex"
    return (text, "text") if text.replace("\n", "").replace("\t", "").isprintable() else (value.hex(), "hex")


def send_again(environment: Environment, plan: Plan, redrive: Redrive) -> str:
    """Send a dead letter to an input again; return in words what was done. Raises SamzaError where it can't be sent."""
    role = {stream.name: stream.role for stream in plan.streams}
    config = environment.streams().get(redrive.to)
    if role.get(redrive.stream) != "dead_letter":
        raise SamzaError(f"{redrive.stream!r} has no dead letters of {plan.app}")
    if redrive.to not in inputs_of(plan) or config is None:
        known = ", ".join(name for name in inputs_of(plan) if name in environment.streams()) or "none"
        raise SamzaError(f"{redrive.to!r} is no input of {plan.app} in {environment}, to which it can be sent: {known}")
    record = _record(environment, redrive)
    _check(plan, record, redrive, sent := _rewritten(plan, record, redrive.to, redrive))
    record, value = sent, sent.value
    said = _said_by(record)
    if said.get("stream") == redrive.to and said.get("partition", "").isdecimal():
        # Where it was: its key is as the writer of the input wrote it, and others of it lie there.
        partition = min(int(said["partition"]), config.partitions - 1)
    else:
        partition = partition_for(record.key, record.offset, config.partitions)
    own = {name: content for name, content in record.headers.items() if name.startswith(OF_RECORD)}
    headers = {name.removeprefix(OF_RECORD): content for name, content in own.items()}
    headers |= {SENT_AGAIN: place_of(redrive.stream, redrive.partition, redrive.offset).encode()}
    timestamps = None if record.timestamp is None else [record.timestamp]
    environment.append(
        [Append(redrive.to, partition, Batch([value], [record.key], timestamps, headers=[headers]))],
    )
    mended = "sent again as it was" if redrive.value is None else "mended and sent again"
    return f"{redrive.stream}/{redrive.partition} at {redrive.offset} was {mended}, to {redrive.to}/{partition}"


def _forms(plan: Plan, stream: str) -> tuple[ReadForm, ...]:
    return next((one.forms for one in plan.streams if one.name == stream), ())


def _is_of_input(record: StoredRecord, to: str) -> bool:
    """Whether a letter has the bytes that its record had in an input; late ones have the operator's."""
    return _said_by(record).get("stream") == to and record.headers.get("error") != LATE


def _check(plan: Plan, letter: StoredRecord, redrive: Redrive, sent: StoredRecord) -> None:
    """Raise SamzaError for a record that an input would not read: each run would end with it."""
    key_was_there = _is_of_input(letter, redrive.to)
    value_was_there = key_was_there and redrive.value is None
    forms = _forms(plan, redrive.to)
    if not forms and not value_was_there:
        raise SamzaError(
            f"the plan that was noted does not say how {redrive.to!r} is read, so that this can't be checked: run "
            f"{plan.app} once more, which notes it"
        )
    for form in forms:
        if sent.value is not None:
            check_readable(form.value, sent.value, "value", redrive.to, was_there=value_was_there)
        elif not form.takes_none:
            raise SamzaError(f"{redrive.to!r} can't read a record without a value, and nothing was sent")
        if form.key is not None and sent.key is not None:
            check_readable(form.key, sent.key, "key", redrive.to, was_there=key_was_there)


def _rewritten(plan: Plan, record: StoredRecord, to: str, redrive: Redrive | None = None) -> StoredRecord:
    """Return a letter with the value and key that an input reads; raises SamzaError where an operator's can't be."""
    value, key = record.value, record.key
    forms = _forms(plan, to)
    if not _is_of_input(record, to) and forms:
        if key is not None:
            key = _key_for(forms[0].key, key)
        if value is not None and (redrive is None or redrive.value is None):
            value = written_for(forms[0].value, value)
    if redrive is not None and redrive.value is not None:
        value = _bytes_of(redrive.value, redrive.form)
    return record._replace(value=value, key=key)


def _key_for(form: StoredForm | None, key: bytes) -> bytes:
    with suppress(SamzaError):
        if form is not None:
            return written_for(form, key)
    # Behind a repartition it may be of another type: it is written as produce() does, and read or refused.
    return Natural().encode(plain_value(key)) if key[:1] <= LAST_TAG else key


def _record(environment: Environment, redrive: Redrive) -> StoredRecord:
    config = environment.streams().get(redrive.stream)
    gone = SamzaError(f"{redrive.stream}/{redrive.partition} has no record at {redrive.offset} any more")
    if config is None or not 0 <= redrive.partition < config.partitions:
        raise gone
    start, end, _ = environment.offsets(redrive.stream, redrive.partition)
    if not start <= redrive.offset < end:
        raise gone
    found = environment.read(redrive.stream, redrive.partition, redrive.offset, 1)
    for one in () if found is None else rows_of(redrive.partition, found):
        if one.offset == redrive.offset:
            return one
    raise gone


def _bytes_of(value: str, form: Form) -> bytes | None:
    if form == "none":
        return None
    if form == "text":
        return value.encode()
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise SamzaError("the value is not text, and to be mended in hex: two digits of 0-9a-f for each byte") from None
