"""The checks of arguments, which refuse mistakes while a pipeline is being written."""

from __future__ import annotations

import inspect
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Reversible,
    Sequence,
)
from collections.abc import Set as AbstractSet
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TypedDict, TypeGuard, TypeVar, get_args, get_origin

import msgspec

from operators.core.base import Serde, Site
from operators.core.durations import whole_ms
from operators.core.policies import DeadLetterPolicy, Fail, Policy, Retry, Skip
from operators.core.wording import type_named
from planner.model.errors import PlanError, refuse
from planner.model.identities import NAME
from planner.model.plan import Options
from planner.model.virtual_tasks import wrong_factor
from runtime.encoding.formats.subjects import placed
from runtime.encoding.record_types import is_pydantic, is_record
from runtime.encoding.serdes import Declared, Json, kept, of_keys, serde_of
from runtime.encoding.value_types import BASES, value_type_of
from runtime.ports import environment as base
from runtime.stores.registry import store_kinds

F = TypeVar("F")

DATA = base.DATA
"""The directory of the embedded log where none is named."""


def check_function(
    site: Site, said: str, function: object, arguments: int, *, awaits: bool | None = False, yields: bool = False
) -> None:
    """Refuse anything that can't be called with so many arguments, or is of the wrong kind of function.

    It is async if `awaits` (None: as it likes), and may be a generator function if `yields`.
    """
    if not callable(function):
        raise refuse(site, f"{said} got {function!r}, which is not a function", _lambda(said, arguments))
    name = name_of(function)
    if isinstance(function, type) and not issubclass(function, type) and _has_own_call(function):
        raise refuse(site, f"{said} got the class {name}, and would only make objects of it", f"{name}(...)")
    _check_kind(site, said, function, awaits, yields)
    _check_arguments(site, said, function, arguments)
    if not isinstance(function, type):
        _check_life(site, said, function)


def check_name(site: Site, what: str, name: object, *, pattern: bool = False) -> None:
    """Refuse what can't be a stream, application or operator name."""
    plain = name.replace("*", "x").replace("?", "x") if pattern and isinstance(name, str) else name
    if not isinstance(plain, str) or not NAME.fullmatch(plain) or ".." in plain:
        raise refuse(site, f"{name!r} can't name {what}", "up to 200 letters, digits, '.', '_' and '-'")


def check_whole(site: Site, said: str, number: object, *, least: int | None = 1, optional: bool = False) -> None:
    """Refuse anything but an int of at least `least`, or None where it is `optional`."""
    if optional and number is None:
        return
    if type(number) is not int or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise refuse(site, f"{said}={number!r} is not a whole number{bound}", f"{said}={max(least or 0, 1)}")


def ms_said(site: Site, said: str, length: object, *, least: int = 1) -> int:
    """Return a length of time in ms; refuses what is neither whole ms of at least `least` nor a timedelta of these."""
    ms = whole_ms(length)
    if type(ms) is not int or ms < least:
        bound = f"{said}={length!r} is not a whole number of at least {least}"
        raise refuse(site, f"{bound}, of ms, nor a timedelta", f"{said}={max(least, 1)}")
    return ms


def optional_ms_said(site: Site, said: str, length: object, *, least: int = 1) -> int | None:
    """Return a length of time in ms, or None where none is said; refuses what is neither."""
    return None if length is None else ms_said(site, said, length, least=least)


def check_policy(site: Site, policy: object) -> None:
    """Refuse what is not an error policy."""
    if not isinstance(policy, Fail | Skip | DeadLetterPolicy | Retry):
        raise refuse(site, f"on_error={policy!r} is not a policy", "on_error=skip, dead_letter('name') or retry(3)")
    check_letter(site, policy.then if isinstance(policy, Retry) else policy)


def check_letter(site: Site, letter: object) -> None:
    """Refuse a stream of dead letters that can't have its name."""
    if isinstance(letter, DeadLetterPolicy):
        check_name(site, "a stream of dead letters", letter.stream)


def check_type(site: Site, said: str, thing: object, kind: type, instead: str) -> None:
    """Refuse what is not a `kind`."""
    if not isinstance(thing, kind):
        raise refuse(site, f"{said} got {thing!r}, which is no {kind.__name__}", instead)


def in_whole_ms(options: Options) -> Options:
    """Return options with their lengths of time in ms, where these were said as timedeltas."""
    if not isinstance(options, Options):
        return options
    said = msgspec.structs.asdict(options)
    changed = {name: ms for name, length in said.items() if (ms := whole_ms(length)) is not length}
    return msgspec.structs.replace(options, **changed) if changed else options


def check_options(site: Site, options: Options) -> None:
    """Refuse options of wrong types, and numbers that can't be meant."""
    check_type(site, "App(options=...)", options, Options, "Options(commit_interval_ms=500)")
    for name, length in msgspec.structs.asdict(options).items():
        if isinstance(length, timedelta):  # which is none of whole ms
            ms_said(site, name, length)
    try:
        msgspec.convert(msgspec.to_builtins(options), Options)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        wrong = f"{name}={getattr(options, name)!r} in Options(...): {error}"
        raise refuse(site, wrong, f"{name}={getattr(Options(), name)!r}") from None
    for name, number in msgspec.structs.asdict(options).items():
        if name not in ("guarantee", "inline", "group_by", "commit_by", "metrics_to"):
            least = 0 if name in ("threads", "cache_entries") else 1
            check_whole(site, name, number, least=least, optional=name in ("blocking_timeout_ms", "elasticity"))
    if options.elasticity is not None and (wrong := wrong_factor(options.elasticity)):
        raise PlanError(f"{site}: elasticity={options.elasticity} in Options(...): {wrong}")
    if options.metrics_to is not None:
        check_name(site, "a stream", options.metrics_to)
    if options.blocking_timeout_ms is not None and not options.threads:
        wrong = "blocking_timeout_ms= has no effect without threads=: nobody watches the event loop's own calls"
        raise refuse(site, wrong, f"threads=1, blocking_timeout_ms={options.blocking_timeout_ms}")


def check_store(site: Site, store: object) -> str:
    """Return the kind of a store; refuses what is none."""
    kinds = store_kinds()
    if store not in kinds:
        instead = " or ".join(f'store="{name}"' for name in kinds)
        raise refuse(site, f"store={store!r} is not a kind of store", instead)
    return str(store)


def remember_said(site: Site, remember: object, keeps_state: bool) -> str | None:
    """Return the word under which answers are remembered, None where they are not; refuses what says neither."""
    if not isinstance(remember, bool | str):
        raise refuse(site, f"remember={remember!r} is neither True nor a word", 'remember=True, or "prompt-2"')
    if remember is False:
        return None
    if keeps_state:
        # The answer goes by the state as well, which a crash takes back.
        wrong = "an answer that goes by a key's state can't be remembered by what is asked"
        raise refuse(site, wrong, ".process(...) for the state, and remember= on a function of the value alone")
    return "" if remember is True else remember


def kept_said(site: Site, retention_ms: object, retention_bytes: object, compression: object) -> int | None:
    """Return the ms for which a stream keeps its records; refuses options that it can't be made with."""
    retention = optional_ms_said(site, "retention_ms", retention_ms)
    check_whole(site, "retention_bytes", retention_bytes, optional=True)
    if compression not in (None, "zlib", "zstd"):
        wrong = f"compression={compression!r} is not a kind of compression"
        raise refuse(site, wrong, 'compression="zstd", "zlib", or leave it out')
    return retention


def serde_said(
    site: Site, said: str, declared: object, knows: Callable[[type], bool] = is_pydantic, operator: str = ""
) -> Serde:
    """Return the serde for a type or serde that was declared; refuses what is neither.

    Types that JSON does not know are refused as well, but for those that it `knows`, of which pydantic's models are
    looked into.
    """
    what = f"{operator}({said}=...)" if operator else said
    instead = f"{said}=str, {said}=list[int], a Struct or dataclass, or a serde such as Json(MyStruct)"
    if isinstance(declared, type) and {"encode", "decode"} <= {
        *dir(declared),
        *getattr(declared, "__annotations__", ()),
    }:
        raise refuse(site, f"{what} got the class {declared.__name__}, not a serde", f"{said}={declared.__name__}()")
    strangers: list[type] = []
    seen: set[type] = set()

    def note(kind: type) -> dict[str, object]:
        # msgspec asks here only for types that it does not know itself.
        if kind is not object and not knows(kind):
            strangers.append(kind)
        elif is_pydantic(kind) and kind not in seen:
            seen.add(kind)
            for one in getattr(kind, "__pydantic_fields__").values():  # noqa: B009  (whatever version it is of)
                msgspec.json.schema(one.annotation, schema_hook=note)
        return {"type": "object"}

    try:
        serde = serde_of(declared)
        if declared is not serde and isinstance(serde, Json):
            msgspec.json.schema(serde.type, schema_hook=note)
    except Exception as error:
        raise refuse(site, f"{what} got {declared!r}: {error}", instead) from None
    if strangers:
        wrong = f"{what} got {declared!r}, and {strangers[0].__name__} is no Struct, dataclass or plain type"
        raise refuse(site, wrong, instead)
    return serde


def key_said(site: Site, said: str, declared: object) -> Serde:
    """Return the serde of keys for a declared type, or the declared serde; refuses a type that says no class."""
    for part, concrete in _abstract_in(declared):
        wrong = f"{said}={type_named(declared)} does not say as what keys come back: a {part} may be of several classes"
        raise refuse(site, wrong, f"{concrete} there")
    return of_keys(serde_said(site, said, declared))


_CONCRETE: dict[type, type] = {
    **dict.fromkeys((Sequence, Collection, Iterable, Iterator, Container, Reversible), tuple),
    **dict.fromkeys((Mapping, MutableMapping), dict),
    **dict.fromkeys((AbstractSet, MutableSet), frozenset),
    MutableSequence: list,
}
"""The classes to declare in the place of those that only say what a value can do."""


def _abstract_in(declared: object) -> Iterator[tuple[str, str]]:
    """Yield each type in a declared one that says no class, with what to write in its place."""
    kind, parts = get_origin(declared) or declared, get_args(declared)
    if isinstance(kind, type) and (concrete := _CONCRETE.get(kind)) is not None:
        of = ", ".join([*map(type_named, parts), *["..."] * (concrete is tuple)])
        yield kind.__name__, concrete.__name__ + (f"[{of}]" if parts else "")
    for part in parts:
        yield from _abstract_in(part)


def handed_on_said(site: Site, declared: object) -> Serde | None:
    """Return the serde of values that go to the next stage; a declared type is stored as state is."""
    if declared is None:
        return None
    serde = serde_said(site, "value", declared, _is_storable)
    return serde if serde is declared else kept(serde)


def state_said(site: Site, operator: str, said: str, declared: object) -> Serde | None:
    """Return the serde of an operator's state for its declared type; refuses a type that has no bytes."""
    if declared is None:
        return None
    serde = serde_said(site, said, declared, _is_storable, operator)
    return serde if serde is declared else Declared(declared)


def sides_said(site: Site, operator: str, declared: object, sides: int = 2) -> tuple[Serde | None, ...]:
    """Return the serdes of an operator's state, one for each of its sides; refuses other numbers of types."""
    if declared is None:
        return (None,) * sides
    if not isinstance(declared, tuple) or len(declared) != sides:
        wrong = f"{operator}(state=...) got {declared!r}, and values of {sides} sides are kept"
        raise refuse(
            site, wrong, f"state=({', '.join(['Order', 'Payment', 'Refund'][:sides])}), with None where any is"
        )
    return tuple(state_said(site, operator, "state", one) for one in declared)


def both_said(site: Site, operator: str, declared: object) -> tuple[Serde | None, Serde | None]:
    """Return the serdes of an operator's state for its two sides."""
    left, right = sides_said(site, operator, declared)
    return left, right


def _is_storable(kind: object) -> bool:
    """Whether values of a type that JSON does not know can be kept."""
    one = get_origin(kind) or kind
    if not isinstance(one, type):
        return False
    return is_record(one) or value_type_of(one) is not None or issubclass(one, (Enum, *BASES))


class SourceFields(TypedDict):
    """The fields of a source's spec about reading its records."""

    site: Site
    on_error: Policy
    value: Serde
    key: Serde | None
    key_of: Callable[..., object] | None
    partitioned_by_key: bool


def source_said(
    site: Site, said: str, stream: str, value: object, key: object, partitioned_by_key: bool, on_error: Policy
) -> SourceFields:
    """Return the fields of a source's spec about reading its records; refuses arguments that can't be meant."""
    check_policy(site, on_error)
    check_type(site, f"{said}(partitioned_by_key=...)", partitioned_by_key, bool, "partitioned_by_key=True")
    declared = isinstance(key, type) or get_origin(key) is not None or hasattr(key, "decode")
    key_of = key if callable(key) and not declared else None
    if partitioned_by_key and key_of is None:
        wrong = f"{said}(partitioned_by_key=True) is about a key that is a function"
        instead = "key=lambda value: value.id, or leave partitioned_by_key out: records lie where their stored key says"
        raise refuse(site, wrong, instead)
    serde = key_said(site, "key", key) if key is not None and key_of is None else None
    return {
        "site": site,
        "on_error": on_error,
        "value": placed(serde_said(site, "value", value), stream),
        "key": None if serde is None else placed(serde, stream, True),
        "key_of": function_said(site, f"{said}(key=...)", key_of),
        "partitioned_by_key": partitioned_by_key,
    }


def function_said(site: Site, said: str, function: F) -> F:
    """Return a function of a value, or None; refuses what is neither."""
    if function is not None:
        check_function(site, said, function, 1)
    return function


def is_coroutine_function(function: object) -> TypeGuard[Callable[..., Awaitable[object]]]:
    """Whether calling `function`, a function or an object, gives a coroutine."""
    return inspect.iscoroutinefunction(_called(function))


def name_of(function: object) -> str:
    """Return the name of a function for a message."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return "the lambda" if name.endswith("<lambda>") else name.rpartition("<locals>.")[2]


def _called(function: object) -> Callable[..., object]:
    """Return the function that is called in the end: within partial, an object's `__call__`, or behind `wraps`."""
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = type(function).__call__
    called: Callable[..., object] = inspect.unwrap(function)
    return called


def _check_kind(site: Site, said: str, function: object, awaits: bool | None, yields: bool) -> None:
    name, is_async = name_of(function), is_coroutine_function(function)
    if inspect.isasyncgenfunction(_called(function)):
        raise refuse(site, f"{said} got the async generator {name}", "an async function that returns a list")
    if inspect.isgeneratorfunction(_called(function)) and not yields:
        wrong = f"{said} got the generator function {name}, of which a call only makes a generator"
        raise refuse(site, wrong, "return instead of yield, or .flat_map(...)")
    if awaits is False and is_async:
        wrong = f"{said} got the async function {name}, which nobody would await"
        raise refuse(site, wrong, "a plain function, or .async_flat_map(...)")
    if awaits is True and not is_async and getattr(function, "__name__", "") != "<lambda>":
        raise refuse(site, f"{said} got {name}, which is not async", "async def, or .flat_map(...)")


def _check_arguments(site: Site, said: str, function: Callable[..., object], arguments: int) -> None:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        number = {0: "no arguments", 1: "1 argument"}.get(arguments, f"{arguments} arguments")
        wrong = f"{said} calls {name_of(function)} with {number}, and it does not take that: {error}"
        raise refuse(site, wrong, f"a function of {number}") from None
    except ValueError:
        pass  # a builtin that has no signature to look at


def _check_life(site: Site, said: str, function: object) -> None:
    """Refuse an object whose `open(context)` or `close()` could not be called."""
    within = function
    while isinstance(within, partial):
        within = within.func
    for name, arguments in (("open", 1), ("close", 0)):
        if hasattr(within, name) and within is not function:
            wrong = f"{said} got a partial, and nobody would call the {name}() of the object within"
            raise refuse(site, wrong, "an object that holds the arguments itself")
        if hasattr(within, name):
            called = _called(getattr(within, name))
            if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
                wrong = f"{said} got an object whose {name}() yields, and nobody would go on behind the yield"
                raise refuse(
                    site, wrong, "open(context) with what comes before the yield, close() with what comes after"
                )
            check_function(site, f"{said}, its {name}(...),", getattr(within, name), arguments, awaits=None)


def _has_own_call(kind: type) -> bool:
    return any("__call__" in vars(base) for base in kind.__mro__)


def _lambda(said: str, arguments: int) -> str:
    names = {0: "", 1: " value", 2: " value, other"}.get(arguments, " a, b, c")
    return said.replace("...", f"lambda{names}: ...")


def check_late(site: Site, said: str, late: object) -> None:
    """Refuse what can't take late messages."""
    if late is not None:
        check_type(site, f"{said}(late=...)", late, DeadLetterPolicy, 'late=dead_letter("late-flights")')
        check_letter(site, late)
