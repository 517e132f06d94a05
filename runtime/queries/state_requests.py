"""Requests for state as they come over HTTP or from another process: typed keys, ranges in pages, answers in JSON."""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes
from uuid import UUID

import msgspec

from operators.core.base import Serde
from planner.model.errors import PlanError
from planner.model.graph import Graph
from runtime.encoding.json_text import to_json
from runtime.encoding.serdes import Bytes, Json, NoKey, String, Tagged
from runtime.model.clock import monotonic_ms, sleep_ms
from runtime.model.errors import SamzaError
from runtime.ports.environment import QueryableEnvironment
from runtime.ports.state import StateSnapshot
from runtime.queries.state_query import LOOK_MS, PATIENCE_MS, NotReached, QueriedState, StateQuery
from runtime.queries.state_shape import KeyBounds, StateShape, shapes_of
from runtime.queries.stored_entries import STORED, RecordingSnapshot, bytes_said, stored_json

MOST_PATIENCE_MS = 8_000.0
"""The longest that a request may wait for a commit: a connection is held for no longer than 10 s."""
PAGE, MOST_IN_PAGE = 100, 1_000
"""The entries in a page of a range, if nobody says how many, and the most that there are."""
LOOKED_AT, LOOK_FOR_MS = 20_000, 500.0
"""The entries, and the time, after which a page ends though it is not full: keys outside of the range are looked at."""
HELD_MS, MOST_HELD = 30_000.0, 16
"""The time for which a range waits for its next page to be asked for, and the number of ranges that do at once."""
PARAMETERS = ("key", "list", "map", "from", "to", "limit", "page", "at_least", "timeout_ms", STORED, "task")
MISSING = object()


class StateRequest(msgspec.Struct, frozen=True):
    """A request for the state of an operator, with what stands behind "?" as it came; "" asks for all operators."""

    operator: str
    said: str = ""


class StateAnswer(msgspec.Struct, frozen=True):
    """The answer to a request: a status of HTTP, and JSON, of a page of a range without the token of its next page."""

    status: int
    text: str
    is_page: bool = False
    next_page: str = ""

    @property
    def json(self) -> str:
        """The whole answer."""
        following = _text(self.next_page) if self.next_page else "null"
        return f'{self.text},"next":{following}}}\n' if self.is_page else self.text


class NoAnswer(Exception):
    """A request that can't be answered, with the status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    @property
    def answer(self) -> StateAnswer:
        """The answer that says so."""
        return StateAnswer(self.status, f'{{"error":{_text(str(self))}}}\n')


class _Range(NamedTuple):
    """A range that is under way."""

    snapshot: StateSnapshot
    shape: StateShape
    entries: Iterator[tuple[Any, ...] | None]
    limit: int
    recording: RecordingSnapshot | None = None
    """What notes the entries that are read, where these are told as they are stored."""


class StateDesk:
    """Answers requests for the state of an application, in one event loop.

    Invariants: a range is read in one snapshot from its first page to its last; one that nobody goes on with is closed
    after `HELD_MS`, so that it keeps nothing in place; and no page takes longer than a part of a second.
    """

    def __init__(self, graph: Graph, opened: Callable[[], AbstractContextManager[QueryableEnvironment]]) -> None:
        self._app = graph.app
        self._query = StateQuery(graph, opened)
        self._states = {shape.operator: QueriedState(self._query, shape) for shape in shapes_of(graph)}
        self._ranges: dict[str, _Range] = {}

    def close(self) -> None:
        """Let go of all ranges."""
        for token in [*self._ranges]:
            self._ranges.pop(token).snapshot.close()

    async def answer(self, request: StateRequest) -> StateAnswer:
        """Return the answer, which may be why there is none."""
        try:
            if not request.operator:
                return StateAnswer(200, self._listed())
            said = parameters_of(request.said)
            state = self._state(request.operator)
            if "page" in said:
                return await self._next_page(state, said)
            async with self._covered(said):
                if STORED in said:
                    return await self._stored(state, said)
                if "key" in said:
                    return await self._one(state, said)
                return await self._first_page(state, said)
        except NoAnswer as refused:
            return refused.answer
        except NotReached as error:
            return NoAnswer(504, str(error)).answer
        except PlanError as error:
            return NoAnswer(400, str(error)).answer
        except SamzaError as error:
            return NoAnswer(503, str(error)).answer

    def _listed(self) -> str:
        one = [
            f'{{"operator":{_text(shape.operator)},"kind":{_text(shape.kind)},"key":{_text(_type_of(shape.key))},'
            f'"windows":{"true" if shape.windows else "false"}}}'
            for shape in (state.shape for state in self._states.values())
        ]
        return f'{{"app":{_text(self._app)},"operators":[{",".join(one)}]}}\n'

    def _state(self, operator: str) -> QueriedState:
        found = self._states.get(operator)
        if found is None:
            known = ", ".join(self._states) or "none"
            raise NoAnswer(404, f"{operator!r} is no operator whose state can be asked for; there are: {known}")
        return found

    @asynccontextmanager
    async def _covered(self, said: Mapping[str, bytes]) -> AsyncIterator[None]:
        """Wait until the commit covers what is asked for."""
        at_least = _offsets(said["at_least"]) if "at_least" in said else None
        timeout_ms = _number(said, "timeout_ms", int(PATIENCE_MS), int(MOST_PATIENCE_MS))
        waits, covered = self._query.waits(at_least, timeout_ms), object()
        # In a thread: on Kafka each look asks brokers, and the loop runs the application meanwhile.
        while at_least and await asyncio.to_thread(next, waits, covered) is not covered:
            await sleep_ms(LOOK_MS)
        yield

    async def _one(self, state: QueriedState, said: Mapping[str, bytes]) -> StateAnswer:
        shape = state.shape
        if extra := said.keys() & {"from", "to", "limit"}:
            raise NoAnswer(400, f"{min(extra)}= is about a range; write instead: key= alone")
        if said.keys() & {"list", "map"}:
            return self._collected(state, said)
        key, found = self._looked_up(shape, said, lambda snapshot, key: state.in_snapshot(snapshot, key, MISSING))
        if found is MISSING and _declared(shape.key) is Any and said["key"][:1] in (b"{", b"["):
            # A record, or one inside: what its class is, the keys alone tell.
            key, found = await asyncio.to_thread(self._shown_as, state, said["key"])
        if found is not MISSING:
            return StateAnswer(200, f'{{"operator":{_text(shape.operator)},{_entry(shape, key, found)}}}\n')
        told = _key(shape.key, keys_of(shape.key, said["key"])[0])
        return StateAnswer(404, f'{{"operator":{_text(shape.operator)},"key":{told},"error":"it has no state"}}\n')

    def _shown_as(self, state: QueriedState, said: bytes) -> tuple[Any, Any]:
        """Return the key that a listing shows so, and its state; MISSING for none. So many may be looked at."""
        try:
            wanted = msgspec.json.decode(said)
        except (msgspec.MsgspecError, UnicodeError):
            return None, MISSING
        snapshot = self._query.held()
        try:
            for looked_at, entry in enumerate(state.scanned(snapshot, None, None), 1):
                if entry is not None and msgspec.json.decode(_key(state.shape.key, entry[0])) == wanted:
                    # Of windows a key has several panes, which one look finds.
                    return entry[0], state.in_snapshot(snapshot, entry[0], MISSING)
                if looked_at >= LOOKED_AT:
                    raise NoAnswer(
                        400,
                        f"it is not among {LOOKED_AT:,} keys, and no more are looked at: declare key_type=, to ask so",
                    )
        finally:
            snapshot.close()
        return None, MISSING

    def _looked_up(
        self, shape: StateShape, said: Mapping[str, bytes], look: Callable[[StateSnapshot, Any], Any]
    ) -> tuple[Any, Any]:
        """Return the first key that a text may stand for of which something is found, and that; MISSING for none."""
        with self._query.snapshot() as snapshot:
            for key in keys_of(shape.key, said["key"]):
                try:
                    found = look(snapshot, key)
                except (TypeError, ValueError) as error:  # what its serde or its partitioner takes for no key
                    raise NoAnswer(400, f"key={said['key']!r} is no key of {shape.operator!r}: {error}") from None
                if found is not MISSING:
                    break
        return key, found

    def _collected(self, state: QueriedState, said: Mapping[str, bytes]) -> StateAnswer:
        """Return the list or the map of a key; raises `NoAnswer` for one of more entries than an answer has."""
        shape, is_list = state.shape, "list" in said
        if shape.collections is None or (is_list and "map" in said):
            instead = "key= alone" if shape.collections is None else "list= or map="
            raise NoAnswer(400, f"{shape.operator!r} can't be asked so; write instead: {instead}")
        kind = "list" if is_list else "map"
        name = said[kind].decode("utf-8", "replace")
        if not name:
            raise NoAnswer(400, f"{kind}= has no name; write instead: {kind}=NAME, as context.{kind}(NAME) has it")
        read = shape.listed if is_list else shape.mapped
        key, found = self._looked_up(
            shape, said, lambda snapshot, key: state.collected(snapshot, key, name, read, LOOKED_AT + 1) or MISSING
        )
        told = f'{{"operator":{_text(shape.operator)},"key":{_key(shape.key, key)},"{kind}":{_text(name)}'
        if found is MISSING:
            return StateAnswer(404, f'{told},"error":"it has no entries"}}\n')
        if len(found) > LOOKED_AT:
            raise NoAnswer(400, f"{kind} {name!r} has over {LOOKED_AT:,} entries; write instead: query(app, data)")
        if is_list:
            return StateAnswer(200, f"{told},{_value(found)}}}\n")
        entries = (f'{{"key":{_key(shape.value, at)},{_value(value)}}}' for at, value in found)
        return StateAnswer(200, f'{told},"entries":[{",".join(entries)}]}}\n')

    async def _first_page(self, state: QueriedState, said: Mapping[str, bytes]) -> StateAnswer:
        if extra := said.keys() & {"list", "map"}:
            raise NoAnswer(400, f"{min(extra)}= is of one key; write instead: key=...&{min(extra)}=...")
        bounds = [keys_of(state.shape.key, said[name])[0] if name in said else None for name in ("from", "to")]
        limit = _number(said, "limit", PAGE, MOST_IN_PAGE)
        self._check_room()
        snapshot = self._query.held()
        entries = state.scanned(snapshot, *bounds)
        return await self._page(_Range(snapshot, state.shape, entries, limit))

    def _check_room(self) -> None:
        if len(self._ranges) >= MOST_HELD:
            raise NoAnswer(503, f"{MOST_HELD} ranges are gone through already; ask again in a while")

    async def _stored(self, state: QueriedState, said: Mapping[str, bytes]) -> StateAnswer:
        """Return the entries of a key, or a page of those of a list, a map or a range, as they are stored.

        Nothing that was sent here is read by a serde of the user's: bounds that one alone can read are left out, and
        who asks leaves out what lies beyond them.
        """
        limit = _number(said, "limit", MOST_IN_PAGE, MOST_IN_PAGE)
        if "key" not in said or said.keys() & {"list", "map"}:
            self._check_room()
        shape, snapshot = state.shape, RecordingSnapshot(self._query.held())
        try:
            asked = _Range(snapshot, shape, _entries_stored(shape, snapshot, said), limit, snapshot)
        except BaseException:
            snapshot.close()
            raise
        entries, token = await self._taken(asked)
        if "key" in said and not entries and not token:
            text = stored_json(self._app, shape.operator, entries)
            return StateAnswer(404, f'{text},"error":"it has no state here"}}\n')
        return self._shown(asked, entries, token)

    async def _next_page(self, state: QueriedState, said: Mapping[str, bytes]) -> StateAnswer:
        if extra := said.keys() - {"page", "limit"}:
            raise NoAnswer(400, f"{min(extra)}= was said with the first page; write instead: page= and limit= alone")
        token = said["page"].decode("latin-1")
        found = self._ranges.get(token)
        if found is None or found.shape.operator != state.shape.operator:
            raise NoAnswer(410, f"no range waits for its page {token!r}, for longer than 30 s none does: begin it anew")
        limit = _number(said, "limit", found.limit, MOST_IN_PAGE)
        # Taken out, so that nobody else goes on with it meanwhile.
        del self._ranges[token]
        return await self._page(found._replace(limit=limit))

    async def _page(self, found: _Range) -> StateAnswer:
        """Return the next page of a range, and let it wait for more where there may be some."""
        return self._shown(found, *await self._taken(found))

    async def _taken(self, found: _Range) -> tuple[list[str], str]:
        """Return the next entries of a range as JSON, and the token of its next page, "" where it is over."""
        try:
            entries, is_over = await asyncio.to_thread(_taken, found)
        except (TypeError, ValueError) as error:
            found.snapshot.close()
            raise NoAnswer(400, f"the range can't be gone through: {error}") from None
        except BaseException:
            found.snapshot.close()
            raise
        if is_over:
            found.snapshot.close()
            return entries, ""
        token = secrets.token_urlsafe(12)
        self._ranges[token] = found
        asyncio.get_running_loop().call_later(HELD_MS / 1_000, self._drop, token)
        return entries, token

    def _shown(self, found: _Range, entries: list[str], token: str) -> StateAnswer:
        """Return a page that has these entries of a range."""
        if found.recording is not None:
            text = stored_json(self._app, found.shape.operator, entries)
        else:
            text = f'{{"operator":{_text(found.shape.operator)},"entries":[{",".join(entries)}]'
        return StateAnswer(200, text, is_page=True, next_page=token)

    def _drop(self, token: str) -> None:
        found = self._ranges.pop(token, None)
        if found is not None:
            found.snapshot.close()


def _taken(found: _Range) -> tuple[list[str], bool]:
    """Return the next entries of a range as JSON, and whether there are no more."""
    taken: list[str] = []
    until_ms = monotonic_ms() + LOOK_FOR_MS
    for looked_at, entry in enumerate(found.entries, 1):
        if found.recording is not None:
            read = found.recording.taken()
            taken += [one.json for one in read] if entry is not None else ()
        elif entry is not None:
            taken.append(f"{{{_entry(found.shape, *entry)}}}")
        if len(taken) >= found.limit or looked_at >= LOOKED_AT or (not looked_at % 100 and monotonic_ms() >= until_ms):
            return taken, False
    return taken, True


def _entries_stored(
    shape: StateShape, snapshot: StateSnapshot, said: Mapping[str, bytes]
) -> Iterator[tuple[Any, ...] | None]:
    """Yield something for each entry, or entries, that `snapshot` shows of what is asked for."""
    if "key" not in said:
        bounds = KeyBounds(*(_bound_said(shape.key, said, name) for name in ("from", "to")))
        tasks = sorted(snapshot.tasks(shape.operator))
        return (one for task in tasks for one in shape.scanned(snapshot, task, bounds))
    data, name = _bytes_of(said, "key"), said.get("list", said.get("map"))
    if name is not None and shape.collections is None:
        raise NoAnswer(400, f"{shape.operator!r} has no lists and maps of a key")
    read = shape.listed if "list" in said else shape.mapped
    tasks = sorted(snapshot.tasks(shape.operator))
    if name is None:
        return ((found,) for task in tasks if (found := shape.found(snapshot, task, None, data)))
    text = name.decode("utf-8", "replace")
    return ((one,) for task in tasks for one in read(snapshot, task, data, text))


def _bytes_of(said: Mapping[str, bytes], name: str) -> bytes:
    try:
        return bytes_said(said[name])
    except ValueError:
        raise NoAnswer(400, f"{name}= is no base64, as {STORED}= has keys") from None


def _bound_said(serde: Serde, said: Mapping[str, bytes], name: str) -> Any:
    if name not in said or not isinstance(serde, Bytes | String | Json | Tagged):
        return None
    try:
        return serde.decode(_bytes_of(said, name))
    except (ValueError, SamzaError):
        raise NoAnswer(400, f"{name}= is no key") from None


def keys_of(serde: Serde, said: bytes) -> list[Any]:
    """Return the keys that were meant, the likeliest first; raises `NoAnswer` for what is no key.

    Text and bytes are said as they are, other keys as JSON. Where no type is declared, text that is no JSON may be said
    as it is, and what looks like a number may be either; dates, UUIDs, decimals and bytes are said as they are shown.

    >>> keys_of(String(), b"7"), keys_of(Tagged(), b"7")[:2], keys_of(Tagged(), b'"7"'), keys_of(Tagged(tuple), b"[1]")
    (['7'], [7, '7'], ['7', '"7"'], [(1,)])
    """
    kind = _declared(serde)
    try:
        if kind is bytes:
            return [said]
        if isinstance(serde, NoKey):
            return [None]
        text = said.decode()
        if kind is str:
            return [text]
        if kind is not Any:
            return [Json(kind).decode(said)]
    except Exception as error:  # a user's own class may raise anything
        raise NoAnswer(400, f"{said!r} is no key: {error}; write instead: JSON of {_type_of(serde)}") from None
    try:
        value = _hashable(Json().decode(said))
    except Exception:
        return [text, *_shown_so(text)]
    if type(value) is str:  # in quotes: text, where what is in them alone would be a number
        return [value, text]
    with suppress(TypeError):  # of lists with records in them there are no sets
        return [value, text, *([frozenset(value)] if type(value) is tuple else _shown_so(text))]
    return [value, text]


def _shown_so(text: str) -> list[Any]:
    """Return the keys of types without a JSON of their own that are shown as a text is."""
    found: list[Any] = []
    for kind in (dt.date, dt.datetime, dt.time, dt.timedelta, UUID, Decimal):
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(text, kind))
    if text in ("inf", "-inf", "nan"):
        found.append(float(text))
    return [*found, unquote_to_bytes(text)]


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _declared(serde: Serde) -> Any:
    """Return the type of keys that is declared; Any where it is the user's own serde, or none is."""
    if isinstance(serde, Bytes | String | Json | Tagged):
        return serde.type
    return Any


def _type_of(serde: Serde) -> str:
    kind = _declared(serde)
    return "any" if kind is Any else str(getattr(kind, "__name__", kind))


def parameters_of(said: str) -> dict[str, bytes]:
    """Return what stands behind "?"; raises `NoAnswer` for a name that means nothing, or is there twice."""
    found: dict[str, bytes] = {}
    for part in said.split("&") if said else ():
        name, equals, value = part.partition("=")
        if not equals or name not in PARAMETERS:
            raise NoAnswer(400, f"{name!r} says nothing here; write instead: {'=, '.join(PARAMETERS)}=")
        if name in found:
            raise NoAnswer(400, f"{name}= is there twice; write instead: {name}= once")
        found[name] = unquote_to_bytes(value.replace("+", " "))
    return found


def _offsets(said: bytes) -> dict[str, int]:
    """Return the offsets that the commit is to cover, as "orders:1200" or "orders:3:1200" has them."""
    found = {}
    for one in said.decode("utf-8", "replace").split(","):
        stream, colon, offset = one.rpartition(":")
        if not colon or not offset.isascii() or not offset.isdecimal() or len(offset) > 18:
            raise NoAnswer(
                400, f"at_least={one!r} is no offset; write instead: STREAM:OFFSET or STREAM:PARTITION:OFFSET"
            )
        found[stream] = int(offset)
    return found


def _number(said: Mapping[str, bytes], name: str, unsaid: int, most: int) -> int:
    data = said.get(name)
    if data is None:
        return unsaid
    if not (data.isdigit() and len(data) <= 9 and 0 < int(data) <= most):
        raise NoAnswer(400, f"{name}={data.decode('latin-1')!r} is no number from 1 to {most:,}")
    return int(data)


def _entry(shape: StateShape, key: Any, state: Any) -> str:
    """Return a key and its state as the fields of a JSON object; where that has no JSON, it says why."""
    return f'"key":{_key(shape.key, key)},{_value(state)}'


def _value(state: Any) -> str:
    try:
        return f'"value":{to_json(state).decode()}'
    except Exception as error:  # a user's own class may raise anything
        return f'"error":{_text(f"its state has no JSON: {error}")}'


def _key(serde: Serde, key: Any) -> str:
    """Return a key as JSON, such that it can be asked for."""
    if type(key) is bytes:
        return _text(quote_from_bytes(key))
    try:
        return to_json(key).decode()
    except Exception:  # a user's own class may raise anything
        return _text(f"{key!r}")


def _text(text: str) -> str:
    return to_json(text.encode("utf-8", "backslashreplace").decode()).decode()
