"""Mistakes that can be seen while a pipeline is being written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_origin

import msgspec

from operators.base import Serde, Site
from operators.policies import DeadLetter, Fail, Retry, Skip
from planner.errors import refuse
from planner.graph import NAME
from planner.plan import Options
from runtime.errors import SamzaError
from runtime.serdes import Json, serde_of
from runtime.spark.session import Spark

DATA = ".samza-dsl"
"""The directory of the embedded log where none is named."""

loads_only = False
"""Whether this is a container while it loads the application, which may not run itself there."""


def check_function(
    site: Site, said: str, function: Any, arguments: int, *, awaits: bool | None = False, yields: bool = False
) -> None:
    """Refuse what can't be called with so many arguments, or does not give what is expected of it.

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


def check_not_loading() -> None:
    """Refuse to run an application while a container loads it."""
    if loads_only:
        raise SamzaError(
            "app.run(...) is called while a container loads the application: write it under "
            'if __name__ == "__main__": in its file'
        )


def check_name(site: Site, what: str, name: Any, *, pattern: bool = False) -> None:
    """Refuse what can't be a stream, application or operator name."""
    plain = name.replace("*", "x").replace("?", "x") if pattern and isinstance(name, str) else name
    if not isinstance(plain, str) or not NAME.fullmatch(plain) or ".." in plain:
        raise refuse(site, f"{name!r} can't name {what}", "up to 200 letters, digits, '.', '_' and '-'")


def check_whole(site: Site, said: str, number: Any, *, least: int | None = 1, optional: bool = False) -> None:
    """Refuse anything but an int of at least `least`, or None where it is `optional`."""
    if optional and number is None:
        return
    if type(number) is not int or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise refuse(site, f"{said}={number!r} is not a whole number{bound}", f"{said}={max(least or 0, 1)}")


def check_policy(site: Site, policy: Any) -> None:
    """Refuse what is not an error policy."""
    if not isinstance(policy, Fail | Skip | DeadLetter | Retry):
        raise refuse(site, f"on_error={policy!r} is not a policy", "on_error=skip, dead_letter('name') or retry(3)")
    check_letter(site, policy.then if isinstance(policy, Retry) else policy)


def check_letter(site: Site, letter: Any) -> None:
    """Refuse a stream of dead letters that can't have its name."""
    if isinstance(letter, DeadLetter):
        check_name(site, "a stream of dead letters", letter.stream)


def check_type(site: Site, said: str, thing: Any, kind: type, instead: str) -> None:
    """Refuse what is not a `kind`."""
    if not isinstance(thing, kind):
        raise refuse(site, f"{said} got {thing!r}, which is no {kind.__name__}", instead)


def check_options(site: Site, options: Any) -> None:
    """Refuse options of wrong types, and numbers that can't be meant."""
    check_type(site, "App(options=...)", options, Options, "Options(commit_interval_ms=500)")
    try:
        msgspec.convert(msgspec.to_builtins(options), Options)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        wrong = f"{name}={getattr(options, name)!r} in Options(...): {error}"
        raise refuse(site, wrong, f"{name}={getattr(Options(), name)!r}") from None
    for name, number in msgspec.structs.asdict(options).items():
        if name not in ("guarantee", "inline", "group_by", "commit_by"):
            least = 0 if name in ("threads", "cache_entries") else 1
            check_whole(site, name, number, least=least, optional=name == "blocking_timeout_ms")
    if options.blocking_timeout_ms is not None and not options.threads:
        wrong = "blocking_timeout_ms= has no effect without threads=: nobody watches the event loop's own calls"
        raise refuse(site, wrong, f"threads=1, blocking_timeout_ms={options.blocking_timeout_ms}")


def check_store(site: Site, store: Any) -> str:
    """Return the kind of a store; refuses what is none."""
    if store not in ("lmdb", "memory"):
        raise refuse(site, f"store={store!r} is not a kind of store", 'store="lmdb" or store="memory"')
    return str(store)


def check_kept(site: Site, retention_ms: Any, retention_bytes: Any, compression: Any) -> None:
    """Refuse what a stream can't be made with."""
    check_whole(site, "retention_ms", retention_ms, optional=True)
    check_whole(site, "retention_bytes", retention_bytes, optional=True)
    if compression not in (None, "zlib", "zstd"):
        wrong = f"compression={compression!r} is not a kind of compression"
        raise refuse(site, wrong, 'compression="zstd", "zlib", or leave it out')


def serde_said(site: Site, said: str, declared: Any) -> Serde:
    """Return the serde for a type or serde that was declared; refuses what is neither."""
    instead = f"{said}=str, {said}=list[int], a Struct or dataclass, or a serde such as Json(MyStruct)"
    if isinstance(declared, type) and {"encode", "decode"} <= {
        *dir(declared),
        *getattr(declared, "__annotations__", ()),
    }:
        raise refuse(site, f"{said} got the class {declared.__name__}, not a serde", f"{said}={declared.__name__}()")
    strangers: list[Any] = []

    def note(kind: type) -> dict[str, Any]:
        strangers.extend([kind] if kind is not object else [])
        return {"type": "object"}

    try:
        serde = serde_of(declared)
        if declared is not serde and isinstance(serde, Json):
            msgspec.json.schema(serde.type, schema_hook=note)
    except Exception as error:
        raise refuse(site, f"{said} got {declared!r}: {error}", instead) from None
    if strangers:
        wrong = f"{said} got {declared!r}, and {strangers[0].__name__} is no Struct, dataclass or plain type"
        raise refuse(site, wrong, instead)
    return serde


def source_said(site: Site, said: str, value: Any, key: Any, partitioned_by_key: bool, on_error: Any) -> dict[str, Any]:
    """Return how the records of a source are read; refuses what can't be meant."""
    check_policy(site, on_error)
    check_type(site, f"{said}(partitioned_by_key=...)", partitioned_by_key, bool, "partitioned_by_key=True")
    declared = isinstance(key, type) or get_origin(key) is not None or hasattr(key, "decode")
    computed = callable(key) and not declared
    if partitioned_by_key and not computed:
        wrong = f"{said}(partitioned_by_key=True) is about a key that is a function"
        instead = "key=lambda value: value.id, or leave partitioned_by_key out: records lie where their stored key says"
        raise refuse(site, wrong, instead)
    return {
        "site": site,
        "on_error": on_error,
        "value": serde_said(site, "value", value),
        "key": serde_said(site, "key", key) if key is not None and not computed else None,
        "key_of": function_said(site, f"{said}(key=...)", key) if computed else None,
        "partitioned_by_key": partitioned_by_key,
    }


def function_said(site: Site, said: str, function: Any) -> Any:
    """Return a function of a value, or None; refuses what is neither."""
    if function is not None:
        check_function(site, said, function, 1)
    return function


def is_coroutine_function(function: Any) -> bool:
    """Whether calling `function`, a function or an object, gives a coroutine."""
    return inspect.iscoroutinefunction(_called(function))


def name_of(function: Callable[..., Any]) -> str:
    """Return what to call a function in a message."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return "the lambda" if name.endswith("<lambda>") else name.rpartition("<locals>.")[2]


def _called(function: Any) -> Any:
    """The function that is called in the end: within partial, an object's `__call__`, and what `wraps` names."""
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = type(function).__call__
    return inspect.unwrap(function)


def _check_kind(site: Site, said: str, function: Any, awaits: bool | None, yields: bool) -> None:
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


def _check_arguments(site: Site, said: str, function: Any, arguments: int) -> None:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        number = {0: "no arguments", 1: "1 argument"}.get(arguments, f"{arguments} arguments")
        wrong = f"{said} calls {name_of(function)} with {number}, and it does not take that: {error}"
        raise refuse(site, wrong, f"a function of {number}") from None
    except ValueError:
        pass  # a builtin that has no signature to look at


def _check_life(site: Site, said: str, function: Any) -> None:
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


def check_late(site: Site, said: str, late: Any) -> None:
    """Refuse what can't take late messages."""
    if late is not None:
        check_type(site, f"{said}(late=...)", late, DeadLetter, 'late=dead_letter("late-flights")')
        check_letter(site, late)


def check_standby(site: Site, standby: Any, containers: int, environment: object) -> None:
    """Raise PlanError where copies of state were asked for, and no machines could have any."""
    check_whole(site, "standby", standby, least=0)
    if standby and (environment is None or containers == 1):
        wrong = f"app.run(standby={standby}): " + (
            "containers on the embedded log have all state on one machine"
            if environment is None
            else "one container has the application to itself, and nobody would take its tasks over"
        )
        instead = 'environment="kafka://host:9092" beside it' if environment is None else "containers=2 beside it"
        raise refuse(site, wrong, f"{instead}, or leave standby= out")


def check_for_spark(site: Site, on: Spark, **said: Any) -> None:
    """Raise PlanError where `app.run` was told what a run on Spark has no use for, or that run what it has not."""
    check_type(site, "app.run(on=...)", on, Spark, 'on=Spark(master="local[4]")')
    for name in ("interval_ms", "max_records"):
        check_whole(site, f"Spark({name}=...)", getattr(on, name), least=int(name == "max_records"))
    about = [name for name in ("interval_ms", "max_records", "end") if getattr(on, name) != getattr(Spark(), name)]
    if about and on.checkpoint is None:
        wrong = f"Spark({about[0]}={getattr(on, about[0])!r}) is about a run that goes on and on, and this one does not"
        raise refuse(site, wrong, f'checkpoint="directory" beside it, or leave {about[0]}= out')
    for name, value in said.items():
        unsaid, why = NOT_ON_SPARK[name]
        if (type(value), value) != (type(unsaid), unsaid):
            raise refuse(site, f"app.run(on=Spark(...), {name}={value!r}): {why}", f"leave {name}= out")


NOT_ON_SPARK: dict[str, tuple[object, str]] = {
    "containers": (1, "Spark shares tasks by itself"),
    "state": (None, "a run goes on with the state of its checkpoint, and begins without any where it has none"),
    "from_start": (
        False,
        "a bounded run reads its inputs from their start anyway, and one with a checkpoint goes on from there; from "
        "another checkpoint it begins anew",
    ),
    "until_now": (
        False,
        "a bounded run ends with what is there now, and everything fires; to leave open what is open it needs "
        'Spark(checkpoint="directory")',
    ),
    "host_id": (None, "Spark shares tasks by itself"),
    "placement": ("sticky", "Spark shares tasks by itself"),
    "standby": (0, "Spark keeps no state of tasks on hosts"),
}
"""What is said of a live run and has no meaning on Spark: what it is when nothing is said, and why."""
