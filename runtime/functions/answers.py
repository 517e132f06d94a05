"""The answers of async calls that are paid for once: kept as they come, and found again behind a crash."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import repeat
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any
from zlib import crc32

import msgspec

from operators.async_flat_map import NOWHERE_STORED, AnswerPlace, encoded_place
from operators.core.base import Key
from operators.core.wording import words_of
from planner.model.virtual_tasks import VirtualTask
from runtime.encoding.keys import KeySerde
from runtime.encoding.serdes import Evolving, Tagged
from runtime.model.errors import SerdeError
from runtime.ports.state import StateWrites

DIGEST_BYTES = 16
_POSITIVE = (1 << 63) - 1
_told_apart = msgspec.msgpack.Encoder(order="deterministic").encode
Question = bytes | SerdeError
"""The place under which a call's answer is kept, or why it can't be."""
Reached = Mapping[tuple[str, int], int]
"""The offset below which all is done, by stream and partition."""


class Answers:
    """The answers of one operator in one task, from when they come until a commit has what came of them.

    A question is known by the place of its record, what is asked, and the function that is called: another function, or
    another value for the same record, asks anew. Answers that an earlier run has left are found once for each.

    Invariants: an answer is fresh, being written or kept, and no two questions that are open have one place; what is
    forgotten lies behind a commit. All is called in the thread of the event loop.
    """

    def __init__(
        self,
        store: str,
        task: VirtualTask,
        keys: KeySerde,
        asking: bytes,
        found: Iterable[tuple[bytes, bytes]],
        ends: Reached,
        word: str = "",
    ) -> None:
        self.store = store
        self._word = word
        self.fresh: dict[bytes, bytes] = {}
        """The answers that came and are not durable, encoded."""
        self._task = task
        self._keys = keys
        self._asking = asking
        self._found = dict(found)
        self._ends = ends
        """The ends of what could be read when the run began: an earlier one has asked about nothing beyond."""
        self._writing: dict[bytes, bytes] = {}
        self._kept: set[bytes] = set()
        self._open: set[bytes] = set()
        self._lingering: set[bytes] = set()
        """The kept answers to messages of no place that were there at the commit before, under "at least once"."""
        self._forgotten: list[bytes] = []
        self._values, self._names = Evolving(), Tagged()
        self._streams: dict[str, bytes] = {}

    @property
    def unkept(self) -> int:
        """The number of answers that a crash would lose."""
        return len(self.fresh) + len(self._writing)

    def questions(
        self,
        where: tuple[str, int],
        offsets: Sequence[int | None],
        keys: Sequence[Key | None] | None,
        arguments: Sequence[object],
    ) -> list[Question]:
        """Return under which places the answers about records of a stream and partition are kept.

        What an operator of the same stage has emitted has its id for a stream, its partition is NOWHERE_STORED, and its
        offsets are stamps. Called once for each message, in an order that is the same in each run.
        """
        (stream, partition), none = where, repeat(None)
        name = self._streams.get(stream) or self._streams.setdefault(stream, self._names.encode(stream))
        found: list[Question] = []
        taken, is_stored, beginning = self._open, partition >= 0, blake2b(digest_size=8, key=self._asking)
        for offset, key, argument in zip(offsets, none if keys is None else keys, arguments, strict=False):
            try:
                asked = self._bytes_of(argument)
            except SerdeError as error:
                found.append(SerdeError(f"what it is asked has no bytes, by which its answer is remembered: {error}"))
                continue
            said = b"" if key is None else self._keys.encode(key)
            digest = beginning.copy()
            digest.update(asked + said if partition == NOWHERE_STORED else asked)
            # What is asked about one record is told apart by it; and all that is emitted at one time, by nothing else.
            number = int.from_bytes(digest.digest(), "big") & _POSITIVE
            at = offset or 0
            hashed = self._hashed(said, at, is_keyed=key is not None, is_stored=is_stored)
            # The same may be asked several times about one record: in order, so that a later run tells them apart.
            while (place := encoded_place(hashed, at, partition, number, name)) in taken:
                number = (number + 1) & _POSITIVE
            taken.add(place)
            found.append(place)
        return found

    def recall(self, question: Question) -> list[object] | None:
        """Return the answer of an earlier run, or None; raises SerdeError for what can't be kept, or not be read."""
        if isinstance(question, SerdeError):
            raise question
        data = self._found.pop(question, None)
        if data is None:
            return None
        self._kept.add(question)
        try:
            answer = self._values.decode(data)
        except Exception as error:
            wrong = f"the answer that an earlier run has kept can't be read: {words_of(error)}"
            raise SerdeError(
                f"{wrong}; or have all asked anew, with another word: remember={_next(self._word)!r}"
            ) from error
        assert isinstance(answer, list), "an answer is kept as a list of messages"
        return answer

    def keep(self, question: Question, answer: list[object]) -> None:
        """Take an answer that has come; raises SerdeError where it has no bytes."""
        assert isinstance(question, bytes), "what can't be kept is not asked"
        try:
            self.fresh[question] = bytes(self._values.encode(answer))
        except SerdeError as error:
            raise SerdeError(f"its answer has no bytes, by which it is remembered: {words_of(error)}") from error

    def to_write(self) -> StateWrites:
        """Return what came, to be made durable; until `written` nothing else of it is written."""
        assert not self._writing, "one write at a time"
        self._writing, self.fresh = self.fresh, {}
        return StateWrites(self.store, self._task.base, sorted(self._writing.items()))

    def written(self) -> None:
        """Take note that it is durable."""
        self._kept.update(self._writing)
        self._writing = {}

    def to_forget(self, reached: Reached, is_drained: bool) -> StateWrites:
        """Return what a commit makes needless, given how far inputs are in it, and whether nothing is in flight."""
        assert not self._writing, "a commit waits for what is being written"
        if is_drained:
            # All that was asked in this run has taken effect.
            gone, self.fresh = [*self._kept], {}
            for places in (self._kept, self._open, self._lingering):
                places.clear()
        else:
            gone = [place for place in self._kept if place in self._lingering or _is_behind(place, reached)]
            for place in [place for place in self.fresh if _is_behind(place, reached)]:
                del self.fresh[place]
                self._open.discard(place)
            self._lingering = {place for place in self._kept if AnswerPlace.of(place).partition == NOWHERE_STORED}
        if self._found:
            is_past = is_drained and all(reached.get(where, end) >= end for where, end in self._ends.items())
            gone += [place for place in self._found if is_past or _is_behind(place, reached)]
        self._forgotten = gone
        return StateWrites(self.store, self._task.base, [(place, None) for place in sorted(gone)])

    def committed(self) -> None:
        """Take note that a commit has what was to be forgotten."""
        for place in self._forgotten:
            self._found.pop(place, None)
            self._kept.discard(place)
            self._open.discard(place)
        self._lingering -= {*self._forgotten}
        self._forgotten = []

    def _bytes_of(self, argument: object) -> bytes:
        """Return bytes that tell an argument from others; raises SerdeError where it has none."""
        try:
            return _told_apart(argument)
        except (TypeError, OverflowError, ValueError):
            return bytes(self._values.encode(argument))

    def _hashed(self, key: bytes, offset: int, is_keyed: bool, is_stored: bool) -> int:
        """Return the hash by which a record is in a part of a split task, and its answers with it."""
        hashed = crc32(key) if is_keyed else offset
        # What was emitted here may have a key of another part: its answer stays with this task all the same.
        is_ours = is_stored and hashed & (self._task.factor - 1) == self._task.bucket
        return hashed if is_ours else self._task.bucket


def _is_behind(encoded: bytes, reached: Reached) -> bool:
    place = AnswerPlace.of(encoded)
    if place.partition == NOWHERE_STORED:
        return False
    stream = Tagged().decode(place.stream)
    assert isinstance(stream, str)
    return place.offset < reached.get((stream, place.partition), 0)


def _next(word: str) -> str:
    """Return another word than one under which answers are remembered: its number is one more.

    >>> _next(""), _next("2"), _next("prompt"), _next("prompt-9")
    ('2', '3', 'prompt-2', 'prompt-10')
    """
    name = word.rstrip("0123456789")
    if name == word:
        return f"{word}-2" if word else "2"
    return f"{name}{int(word.removeprefix(name)) + 1}"


def asking_of(function: Callable[..., object], word: str) -> bytes:
    """Return a digest of a function as it is written, and of the user's word: with another one all is asked anew.

    It has the code of the function, its defaults, and the texts and functions of its module that it names, with theirs.
    Other values that it uses, and code of other modules, are not in it: for these there is the word.

    >>> def ask(text): return [text]
    >>> asking_of(ask, "") == asking_of(ask, ""), asking_of(ask, "") == asking_of(ask, "2")
    (True, False)
    """
    found = blake2b(digest_size=DIGEST_BYTES)
    # The same source has other byte code in another version of Python.
    for part in (repr(sys.version_info[:2]), repr(word), *_told(function, set())):
        found.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return found.digest()


def _told(thing: Any, seen: set[int]) -> Iterator[str]:
    """Yield words for what is callable, each function once."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, functools.partial):
        yield from _told(thing.func, seen)
        yield from (repr(one) for one in (*thing.args, *sorted(thing.keywords.items())) if _is_plain(one))
    elif inspect.ismethod(thing):
        yield from _told(thing.__func__, seen)
    elif isinstance(thing, FunctionType):
        yield from _told_of_code(thing.__code__, thing, seen)
        yield from (repr(one) for one in thing.__defaults__ or () if _is_plain(one))
        yield from (repr(one) for one in sorted((thing.__kwdefaults__ or {}).items()) if _is_plain(one))
        # Values in closures may differ from process to process; functions there are as they are written.
        closed_over = inspect.getclosurevars(thing).nonlocals.values() if thing.__closure__ else ()
        yield from (word for one in closed_over if callable(one) for word in _told(one, seen))
    elif isinstance(thing, BuiltinFunctionType | type):
        yield thing.__qualname__
    elif callable(thing):
        yield type(thing).__qualname__
        yield from _told(type(thing).__call__, seen)
        yield from (word for one in vars(thing).values() if callable(one) for word in _told(one, seen))


def _told_of_code(code: CodeType, function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount))
    consts = code.co_consts
    for one in consts:
        if isinstance(one, CodeType):
            yield from _told_of_code(one, function, seen)
        else:
            yield repr(sorted(one, key=repr)) if isinstance(one, frozenset) else repr(one)
    for name in code.co_names:
        named = function.__globals__.get(name)
        if isinstance(named, str | bytes):
            yield repr((name, named))
        elif isinstance(named, FunctionType) and named.__module__ == function.__module__:
            yield from _told(named, seen)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | int | float)
