"""The text of any exception and any value: it never raises, is UTF-8, and has a bound, whatever their code does."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast, get_args

E = TypeVar("E", bound=BaseException)

LONGEST = 20_000
"""The most characters of an exception's or a value's text; a dead letter has to fit into a message."""

OWN = {name: vars(BaseException)[name] for name in ("__cause__", "__context__", "__traceback__")}
"""What every exception has, whatever attributes its class says that it has."""
ASKED = frozenset((*OWN, "__suppress_context__", "__notes__", "__class__", "__getattribute__", "args"))
"""The attributes by which Python and code of ours look at an exception."""
_WRITTEN_IN_PYTHON = 1 << 9  # the flag of what C calls a heap type
_CLASSES, _FLAGS, _NAMES = (vars(type)[name].__get__ for name in ("__mro__", "__flags__", "__dict__"))


def words_of(error: BaseException) -> str:
    r"""Return the text of an exception, or that it has none.

    >>> class Mute(Exception):
    ...     def __str__(self):
    ...         raise RuntimeError("no text")
    >>> words_of(ValueError("caf\udce9")), words_of(Mute())
    ('caf\\udce9', '<Mute whose __str__ raised RuntimeError>')
    """
    return _safely(str, error, "__str__")


def shown(value: object) -> str:
    r"""Return the `repr` of a value, or its class if that raises.

    >>> class Shy:
    ...     def __repr__(self):
    ...         return None
    >>> shown("caf\udce9"), shown(Shy())
    ("'caf\\udce9'", '<Shy whose __repr__ raised TypeError>')
    """
    return _safely(repr, value, "__repr__")


def stable(value: Any) -> str:
    """Return a value in words that are the same in each process: sets in order, and functions without their names.

    Records are told by those of their fields that `repr` has, unless they say it in their own way.

    >>> stable({"b", "a"}), stable([len, (1, None)])
    ("{'a', 'b'}", '[a function, (1, None)]')
    """
    kind = type(value)
    if kind in (set, frozenset):
        return f"{{{', '.join(sorted(map(stable, value)))}}}"
    if kind is list:
        return f"[{', '.join(map(stable, value))}]"
    if kind is tuple:
        return f"({', '.join(map(stable, value))}{',' * (len(value) == 1)})"
    if kind is dict:
        return f"{{{', '.join(f'{stable(name)}: {stable(one)}' for name, one in value.items())}}}"
    if is_dataclass(kind) and hasattr(kind.__repr__, "__wrapped__"):  # which dataclass itself has made
        told = [f"{one.name}={stable(getattr(value, one.name))}" for one in fields(kind) if one.repr]
        return f"{kind.__qualname__}({', '.join(told)})"
    return "a function" if inspect.isroutine(value) else shown(value)


def type_named(kind: object) -> str:
    """Return a type as its user writes it.

    >>> type_named(int), type_named(list[int])
    ('int', 'list[int]')
    """
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def named(error: BaseException) -> str:
    """Return the class of an exception and what it says.

    >>> named(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    return f"{class_name(error)}: {words_of(error)}"


def class_name(thing: object) -> str:
    """Return the name of a thing's class, whatever its metaclass makes of `__name__`.

    >>> class_name(ZeroDivisionError("division by zero"))
    'ZeroDivisionError'
    """
    return encodable(type.__dict__["__name__"].__get__(type(thing)))


def askable(error: E) -> E:
    """Return an exception whose attributes run no code of the user's: itself, or what stands for it, by name and text.

    So it is with all that it came of, too.

    >>> class Shy(Exception):
    ...     def __getattribute__(self, name):
    ...         raise RuntimeError(name)
    >>> named(askable(Shy("told"))), askable(ZeroDivisionError())
    ('Shy: told', ZeroDivisionError())
    """
    if OWN["__cause__"].__get__(error) is None and OWN["__context__"].__get__(error) is None:
        return cast(E, _askable_alone(error))  # as most are, of each record that fails
    found = {id(one): _askable_alone(one) for one in _origins(error)}
    for one in [*_origins(error)]:
        for origin in (OWN["__cause__"], OWN["__context__"]):
            before, after = found[id(one)], found.get(id(origin.__get__(one)))
            if origin.__get__(before) is not after:
                origin.__set__(before, after)
    return cast(E, found[id(error)])


def forget_tracebacks(error: BaseException) -> None:
    """Let an exception and all that it came of forget where they were raised: by frames they would hold batches."""
    for one in [*_origins(error)]:
        OWN["__traceback__"].__set__(one, None)  # a frozen dataclass would refuse to be set


def _origins(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it came of, each once: one of the user's may be its own cause."""
    todo: list[BaseException | None] = [error]
    seen = set[int]()
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += OWN["__cause__"].__get__(one), OWN["__context__"].__get__(one)


def _askable_alone(error: BaseException) -> BaseException:
    """Return an exception, or what stands for it, without what it came of."""
    kind = type(error)
    if all(map(ASKED.isdisjoint, _written_names(kind))):
        return error
    bases = (Exception, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException)
    base = next(one for one in bases if issubclass(kind, one))
    found: BaseException = type(class_name(error), (base,), {"__module__": "builtins"})(words_of(error))
    if isinstance(found, SystemExit):
        found.code = vars(SystemExit)["code"].__get__(error)
    OWN["__traceback__"].__set__(found, OWN["__traceback__"].__get__(error))
    return found


def _written_names(kind: type) -> Iterator[Mapping[str, object]]:
    """Yield what the classes that are written in Python define, asking `type` alone, which runs nothing of theirs."""
    for one in _CLASSES(kind):
        if _FLAGS(one) & _WRITTEN_IN_PYTHON:
            yield _NAMES(one)


def raised(error: BaseException) -> str:
    """Return an exception as the last lines of a traceback have it, with its notes.

    >>> raised(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    text = _by_python(traceback.format_exception_only, error)
    return named(error) if text is None else cut(text)


def traced(error: BaseException) -> str:
    """Return an exception with the lines on which it was raised, and all that it came of, as a traceback has them.

    >>> traced(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    text = _by_python(traceback.format_exception, error)
    if text is not None:
        return text
    return "".join([*map(encodable, traceback.format_tb(OWN["__traceback__"].__get__(error))), raised(error)])


def _by_python(form: Callable[[BaseException], Iterable[str]], error: BaseException) -> str | None:
    """Return what Python makes of an exception; None where code of the user's has it fail."""
    try:
        text = "".join(form(error)).strip()
    except KeyboardInterrupt:
        raise
    # Its notes, its class, or what a SyntaxError holds are not what they should be; or its truth, which is asked for.
    except BaseException:
        return None
    return encodable(text)


def encodable(text: str) -> str:
    r"""Return text of which every character can be encoded; a lone surrogate is written as its code.

    >>> encodable("caf\udce9")
    'caf\\udce9'
    """
    # By str itself: what a __str__ or __repr__ returns may be of a class with an encode of its own.
    return str.encode(text, "utf-8", "backslashreplace").decode()


def encodable_all(told: object) -> object:
    r"""Return plain data of which every text can be encoded.

    >>> encodable_all({"caf\udce9": ["a", 1]})
    {'caf\\udce9': ['a', 1]}
    """
    if isinstance(told, str):
        return encodable(told)
    if isinstance(told, dict):
        return {encodable_all(name): encodable_all(value) for name, value in told.items()}
    return [*map(encodable_all, told)] if isinstance(told, list | tuple) else told


def cut(text: str) -> str:
    """Return at most `LONGEST` characters of a text, and how many there were.

    >>> cut("x" * 3_000_000)[-32:]
    'xxx... (of 3,000,000 characters)'
    """
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... (of {len(text):,} characters)"


def _safely(tell: Callable[[object], str], thing: object, name: str) -> str:
    try:
        text = tell(thing)
    except KeyboardInterrupt:
        raise  # somebody has pressed Ctrl-C while it was told
    except BaseException as error:  # an exit, too: nobody asks for one by how a record failed
        return f"<{class_name(thing)} whose {name} raised {class_name(error)}>"
    return cut(encodable(text))
