"""Mistakes that can be seen while a pipeline is being written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from operators.base import Site
from operators.policies import DeadLetter, Fail, Retry, Skip
from planner.errors import refuse
from planner.graph import NAME


def check_function(site: Site, said: str, function: Any, arguments: int, *, awaits: bool | None = False) -> None:
    """Refuse what can't be called with so many arguments, or is async where it must not be, or the reverse.

    `awaits` None accepts both.
    """
    if not callable(function):
        raise refuse(site, f"{said} got {function!r}, which is not a function", f"{said.rstrip(')')}lambda value: ...)")
    is_async = is_coroutine_function(function)
    if awaits is False and is_async:
        raise refuse(
            site,
            f"{said} got the async function {name_of(function)}, which nobody would await",
            ".async_flat_map(...), or a plain function",
        )
    if awaits is True and not is_async and not _may_return_awaitable(function):
        raise refuse(site, f"{said} got {name_of(function)}, which is not async", "async def, or .flat_map(...)")
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        plural = "argument" if arguments == 1 else "arguments"
        raise refuse(
            site,
            f"{said} calls {name_of(function)} with {arguments} {plural}, and it does not take that: {error}",
            f"a function of {arguments} {plural}",
        ) from None
    except ValueError:
        pass  # a builtin that has no signature to look at


def check_name(site: Site, what: str, name: Any, *, pattern: bool = False) -> None:
    """Refuse what can't be a stream, application or operator name."""
    plain = name.replace("*", "x").replace("?", "x") if pattern and isinstance(name, str) else name
    if not isinstance(plain, str) or not NAME.fullmatch(plain) or ".." in plain:
        raise refuse(site, f"{name!r} can't name {what}", "up to 200 letters, digits, '.', '_' and '-'")


def check_positive(site: Site, said: str, number: Any, *, least: int = 1) -> None:
    """Refuse anything but an int of at least `least`."""
    if number is not None and (type(number) is not int or number < least):
        raise refuse(site, f"{said}={number!r} is not a whole number of at least {least}", f"{said}={max(least, 1)}")


def check_policy(site: Site, policy: Any) -> None:
    """Refuse what is not an error policy."""
    if not isinstance(policy, Fail | Skip | DeadLetter | Retry):
        raise refuse(site, f"on_error={policy!r} is not a policy", "on_error=skip, dead_letter('name') or retry(3)")
    letter = policy.then if isinstance(policy, Retry) else policy
    if isinstance(letter, DeadLetter):
        check_name(site, "a stream of dead letters", letter.stream)


def check_type(site: Site, said: str, thing: Any, kind: type, instead: str) -> None:
    """Refuse what is not a `kind`."""
    if not isinstance(thing, kind):
        raise refuse(site, f"{said} got {thing!r}, which is not a {kind.__name__}", instead)


def is_coroutine_function(function: Any) -> bool:
    """Whether calling `function`, a function or an object, gives a coroutine."""
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", called)))


def _may_return_awaitable(function: Any) -> bool:
    return getattr(function, "__name__", "") == "<lambda>"


def name_of(function: Callable[..., Any]) -> str:
    """Return what to call a function in a message."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return "the lambda" if name.endswith("<lambda>") else name.rpartition("<locals>.")[2]
