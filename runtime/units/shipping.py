"""The shipping of an application to other processes: functions and classes go along where only this one has them."""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import sys
import sysconfig
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from runtime.encoding.classes import know, name_of_main
from runtime.model.errors import SamzaError

if sys.version_info >= (3, 14):
    import annotationlib

if TYPE_CHECKING:
    from runtime.units.program import Program, ShippedJob

OURS = frozenset({"samza_dsl", "planner", "operators", "runtime"})
ELSEWHERE = ("site-packages", "dist-packages")
StructMeta: type[msgspec.StructMeta] = type(msgspec.Struct)
MADE_BY_STRUCT = frozenset(
    (
        *("__annotations__", "__slots__", "__dict__", "__weakref__", "__struct_fields__", "__struct_config__"),
        *("__struct_defaults__", "__struct_encode_fields__", "__match_args__", "__parameters__", "__annotate__"),
        *("__annotate_func__", "__annotations_cache__", "__static_attributes__", "__firstlineno__"),
    )
)
KNOWN_TO_MSGSPEC = "__msgspec_cache__"
"""The attribute of an enum or a dataclass that msgspec has met, by which it finds values; it is made anew."""
CODERS = (
    *(msgspec.json.Decoder, msgspec.json.Encoder, msgspec.msgpack.Decoder, msgspec.msgpack.Encoder),
    *(msgspec.Meta,),
)
"""The objects of msgspec that pickle does not take: each is made anew of what it says of itself."""
MARKS = {type(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")}
"""What stands for nothing in the fields of dataclasses, by its class: `is` looks for it, and pickle makes another."""


def dumps(thing: object, imported: Sequence[str] = ()) -> bytes:
    """Return the bytes of `thing`; modules that are not installed go with it. Raises what pickle raises.

    Those that lie in one of the folders and zips that are `imported` elsewhere, too, go by their names.
    """
    from pyspark import cloudpickle as untyped

    cloudpickle: Any = untyped
    kinds: dict[type, None] = {}

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, obj: object) -> object:
            if type(obj) in MARKS:
                return getattr, (dataclasses, MARKS[type(obj)])
            if isinstance(obj, CODERS):
                return _made, (type(obj), _said(obj))
            if not isinstance(obj, type) or not _goes_along(obj, imported):
                return super().reducer_override(obj)
            kinds[obj] = None
            if isinstance(obj, StructMeta):
                return _struct(obj)
            reduced = super().reducer_override(obj)
            if isinstance(reduced, tuple):
                reduced[2][0].pop(KNOWN_TO_MSGSPEC, None)
            if isinstance(reduced, tuple) and _written(obj):
                reduced[2][0]["__annotations__"] = _hints(obj)  # which words say can be looked up only here
            return reduced

    file = io.BytesIO()
    with _modules_going_along(cloudpickle, imported):
        pickler = Pickler(file, protocol=5)
        pickler.dump(thing)
        # The classes that went along, so that self-describing bytes mean the same on both sides.
        pickler.dump((name_of_main(), list(kinds)))
    return file.getvalue()


def shipped(program: Program, imported: Sequence[str] = ()) -> bytes:
    """Return the bytes of a program, as `dumps` does; raises SamzaError, of the operator that can't be sent."""
    try:
        return dumps(program, imported)
    except Exception as error:
        # Thing by thing only now that it has failed, to say whose it is: that takes a multiple of the time.
        for job in program.jobs:
            for where, thing in _things_of(job):
                try:
                    dumps(thing, imported)
                except Exception as same:
                    raise SamzaError(
                        f"{where} can't be sent to the workers of Spark: {same}. What can't be copied, as connections, "
                        "locks and files, make in open(context) of an object, not before"
                    ) from same
        raise SamzaError(f"the application can't be sent to the workers of Spark: {error}") from error


def _things_of(job: ShippedJob) -> Iterator[tuple[str, object]]:
    """Yield what the user has given an application, each with where it is, those first that others are made of."""
    for id, spec in job.graph.specs.items():
        for name, thing in spec.functions().items():
            yield f"{spec.kind} {id!r} at {spec.site}: its {name}", thing
        yield f"{spec.kind} {id!r} at {spec.site}: what it was made with", spec
    yield "app.wrap: a function", job.around
    for name, source in job.inputs.items():
        yield f"bind: the source of {name!r}", source


def loads(data: bytes) -> Any:
    """Return what `dumps` made bytes of, and make its classes known by their names."""
    unpickler = pickle.Unpickler(io.BytesIO(data))
    thing = unpickler.load()
    main, kinds = unpickler.load()
    for kind in kinds:
        if "<locals>" not in kind.__qualname__:
            module = main if kind.__module__ == "__main__" else kind.__module__
            know(kind, f"{module}:{kind.__qualname__}")
    return thing


def _goes_along(kind: type, imported: Sequence[str]) -> bool:
    """Whether a class can't be imported elsewhere."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__" or module is None or "<locals>" in kind.__qualname__:
        return True
    return is_only_here(module, imported)


def is_only_here(module: ModuleType, imported: Sequence[str] = ()) -> bool:
    """Whether a module is found by this program's path alone: not installed, and in nothing that is `imported`.

    >>> is_only_here(msgspec), is_only_here(sys)
    (False, False)
    """
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__" or module.__name__.partition(".")[0] in OURS:
        return False
    return not (_is_installed(file) or any(map(Path(file).is_relative_to, imported)))


_elsewhere: dict[str, object] = {}
"""The modules that workers find by themselves, by name: there are thousands."""


@cache
def _is_installed(file: str) -> bool:
    path = Path(file)
    return any(part in ELSEWHERE for part in path.parts) or any(map(path.is_relative_to, _installed()))


@cache
def _installed() -> tuple[str, ...]:
    places = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
    return tuple(place for place in places if place)


@contextmanager
def _modules_going_along(cloudpickle: ModuleType, imported: Sequence[str]) -> Iterator[None]:
    said = set(cloudpickle.cloudpickle.list_registry_pickle_by_value())
    modules = [one for one in _only_here(imported) if one.__name__ not in said]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _only_here(imported: Sequence[str]) -> Iterator[ModuleType]:
    """Yield the modules that workers don't find by themselves; those that they do are not looked at again."""
    for name, module in [*sys.modules.items()]:
        if _elsewhere.get(name) is not module:
            if isinstance(module, ModuleType) and module.__name__ == name and is_only_here(module):
                if is_only_here(module, imported):
                    yield module
            else:
                _elsewhere[name] = module


def _said(thing: object) -> dict[str, object]:
    """Return what it was made with: what it is asked for by name, but for its methods."""
    names = (name for name in dir(thing) if not name.startswith(("_", "encode", "decode")))
    return {name: getattr(thing, name) for name in names}


def _made(kind: Callable[..., object], said: dict[str, object]) -> object:
    return kind(**{name: value for name, value in said.items() if value is not None or name == "type"})


def _hints(kind: type) -> dict[str, object]:
    """Return the types of a class's own fields, where they can be told; else what was written."""
    written = _written(kind)
    try:
        found = typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return written
    return {name: found[name] for name in written}


def _written(kind: type) -> dict[str, object]:
    """Return what is written as the types of a class's own fields, which Python 3.14 works out when it is asked."""
    if sys.version_info >= (3, 14):
        return dict(annotationlib.get_annotations(kind, format=annotationlib.Format.FORWARDREF))
    return dict(inspect.get_annotations(kind))


def _struct(kind: Any) -> tuple[object, ...]:
    """Return how to make a Struct anew: first its fields alone, since all else may name the class itself."""
    hints = _hints(kind)
    config = {name: getattr(kind.__struct_config__, name) for name in dir(kind.__struct_config__) if name[0] != "_"}
    fields = {one.name: one for one in msgspec.structs.fields(kind) if one.name in hints}
    config["kw_only"] = bool(fields) and not any(name in kind.__match_args__ for name in fields)
    plain = [(name, fields[name].encode_name, _has_default(fields[name])) for name in hints if name in fields]
    names = {name: vars(kind)[name] for name in ("__module__", "__qualname__", "__orig_bases__") if name in vars(kind)}
    rest = {name: value for name, value in vars(kind).items() if name not in {*MADE_BY_STRUCT, *names, *fields}}
    given = {name: (one.default, one.default_factory) for name, one in fields.items() if _has_default(one)}
    made = kind.__name__, kind.__bases__, names, plain, config, "__post_init__" in rest, given
    return _struct_made, made, (hints, rest), None, None, _struct_completed


def _has_default(one: msgspec.structs.FieldInfo) -> bool:
    return one.default is not msgspec.NODEFAULT or one.default_factory is not msgspec.NODEFAULT


def _struct_made(
    name: str,
    bases: tuple[type, ...],
    names: dict[str, object],
    fields: list[tuple[str, str, bool]],
    config: dict[str, Any],
    is_followed: bool,
    given: dict[str, tuple[object, object]],
) -> type:
    namespace: dict[str, object] = {**names, "__annotations__": {field: Any for field, _, _ in fields}}
    for field, encoded, has_default in fields:
        said: dict[str, Any] = {"name": encoded} if encoded != field else {}
        if has_default:
            default, factory = given[field]
            said |= {"default": default} if factory is msgspec.NODEFAULT else {"default_factory": factory}
        if said:
            namespace[field] = msgspec.field(**said)
    if is_followed:
        namespace["__post_init__"] = _later()
    return StructMeta(name, bases, namespace, **config)


def _struct_completed(kind: type, state: tuple[dict[str, object], dict[str, object]]) -> None:
    hints, rest = state
    kind.__annotations__ = hints
    followed = rest.pop("__post_init__", None)
    if followed is not None:
        vars(kind)["__post_init__"].functions.append(followed)
    for name, value in rest.items():
        setattr(kind, name, value)


def _later() -> Callable[[object], None]:
    """Return a function that calls one which is given to it later: a Struct asks for its own as it is made."""

    def post_init(self: object) -> None:
        functions[0](self)

    functions: list[Callable[[object], None]] = []
    post_init.functions = functions  # type: ignore[attr-defined]
    return post_init
