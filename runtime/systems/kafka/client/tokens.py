"""The token by which a client proves who it is (OAUTHBEARER), and what other processes are given for it."""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import io
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

from aiokafka import conn
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError, SaslAuthenticationFailed

from runtime.model.errors import SamzaError

TOKEN = "sasl_oauth_token_provider"
MECHANISMS = "PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
PROTOCOLS = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
TOKEN_S = 30
"""The s within which a provider has to give a token."""
_PICKLED = "pickled:"
FORMS = (
    "a function that returns a token, be it async, an aiokafka.abc.AbstractTokenProvider, or where either is found, as "
    '"MODULE:NAME"'
)


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    """Asks what the user gave for a token, and says in a client's words what is wrong of it."""

    def __init__(self, said: Callable[[], object] | AbstractTokenProvider) -> None:
        self._said = said

    async def token(self) -> str:
        """Return the token; raises AuthenticationFailedError where there is none."""
        ask = self._said.token if isinstance(self._said, AbstractTokenProvider) else self._said
        try:
            async with asyncio.timeout(TOKEN_S) as waiting:
                # All of a process's clients are on one thread, which a provider that waits for a service would hold up.
                found = ask() if inspect.iscoroutinefunction(ask) else await _beside(ask)
                found = await found if inspect.isawaitable(found) else found
        # What would end the process as well, as sys.exit(): on this thread it would end that alone.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            is_late = isinstance(error, TimeoutError) and waiting.expired()
            why = f"has not answered for {TOKEN_S} s" if is_late else f"has failed: {error!r}"
            raise AuthenticationFailedError(f"the token provider {_name(self._said)} {why}") from error
        if not isinstance(found, str) or not found:
            kind = type(found).__name__ if found != "" else "empty text"
            raise AuthenticationFailedError(f"the token provider {_name(self._said)} returned {kind}, and no token")
        return found

    def extensions(self) -> Mapping[str, str]:
        """Return what is said beside the token."""
        extensions = getattr(self._said, "extensions", None)
        try:
            return extensions() if callable(extensions) else {}
        except Exception as error:
            raise AuthenticationFailedError(f"the token provider {_name(self._said)} has failed: {error!r}") from error


async def _beside(ask: Callable[[], object]) -> object:
    """Return what a function returns, called on a thread of its own, which keeps no process from its end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def settle(found: object, error: BaseException | None) -> None:
        if not answer.done():  # else nobody waits any more
            answer.set_result((found, error))

    def call() -> None:
        found, failed = None, None
        # One at a time, since a provider may keep its token and have no lock; behind one that hangs not for ever.
        is_alone = _asking.acquire(timeout=TOKEN_S / 2)
        try:
            found = ask()
        except BaseException as error:  # told where it is waited for
            failed = error
        finally:
            if is_alone:
                _asking.release()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, found, failed)

    threading.Thread(target=call, name="samza-dsl-token", daemon=True).start()
    found, failed = await answer
    if failed is not None:
        raise failed
    return found


_asking = threading.Lock()


class _Answered(conn.OAuthAuthenticator):  # type: ignore[misc]
    """Hears that a token was rejected: brokers say so in an answer that aiokafka takes for consent."""

    async def step(self, payload: bytes | None) -> object:
        """Return what is said next; raises SaslAuthenticationFailed."""
        if payload:
            raise SaslAuthenticationFailed(f"the token was rejected: {bytes(payload).decode(errors='replace')}")
        return await super().step(payload)


conn.OAuthAuthenticator = _Answered


def check_options(options: Mapping[str, object]) -> None:
    """Raise SamzaError for options by which no client can prove who it is."""
    protocol, mechanism = options.get("security_protocol", "PLAINTEXT"), options.get("sasl_mechanism", "PLAIN")
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        raise SamzaError(f"security_protocol={protocol!r} in the options: it is one of {', '.join(PROTOCOLS)}")
    if not isinstance(mechanism, str) or mechanism not in MECHANISMS:
        raise SamzaError(f"sasl_mechanism={mechanism!r} in the options: it is one of {', '.join(MECHANISMS)}")
    if not protocol.startswith("SASL"):
        if "sasl_mechanism" in options:
            raise SamzaError(
                f"sasl_mechanism={mechanism!r} in the options: nothing is proven with security_protocol={protocol!r}; "
                'write security_protocol="SASL_SSL", or "SASL_PLAINTEXT" where there is no TLS'
            )
        return
    if mechanism == "GSSAPI" and find_spec("gssapi") is None:
        raise SamzaError("sasl_mechanism='GSSAPI' needs the library gssapi: pip install gssapi")
    if mechanism == "OAUTHBEARER" and options.get(TOKEN) is None:
        raise SamzaError(f"sasl_mechanism='OAUTHBEARER' takes {TOKEN}= as well: {FORMS}")
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM"):
        for name in ("sasl_plain_username", "sasl_plain_password"):
            if not isinstance(options.get(name), str):
                raise SamzaError(f"sasl_mechanism={mechanism!r} takes {name}= as well, a text")


@lru_cache(maxsize=64)
def _made(place: str) -> object:
    """Return what another process gave, or what has a name: one in each process, which may keep its token."""
    if place.startswith(_PICKLED):
        return pickle.loads(base64.b64decode(place.removeprefix(_PICKLED)))
    module, _, name = place.partition(":")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SamzaError(f"{TOKEN}={place!r} can't be found: {error}; write MODULE:NAME") from error
    except Exception as error:  # of the module's own code
        raise SamzaError(f"{TOKEN}={place!r}: its module can't be loaded: {error!r}") from error
    return found


@lru_cache(maxsize=64)
def _instance(kind: type) -> object:
    try:
        return kind()
    except Exception as error:
        raise SamzaError(
            f"{TOKEN}: a {kind.__qualname__} can't be made without arguments: {error!r}; give an object of it, or a "
            "function that returns a token"
        ) from error


def provider_of(said: object) -> Provider:
    """Return what asks for tokens; raises SamzaError for what can't be asked."""
    found = _made(said) if isinstance(said, str) and ":" in said else said
    if isinstance(found, type):
        found = _instance(found)
    if isinstance(found, Provider):
        return found
    if isinstance(found, AbstractTokenProvider) or callable(found):
        return Provider(found)
    raise SamzaError(f"{TOKEN} in the options can't be a {type(found).__name__}: give it {FORMS}")


def given(said: object) -> str:
    """Return a token provider as other processes find it; raises SamzaError where they can't."""
    if isinstance(said, str):
        return said
    if isinstance(said, FunctionType | type) and said.__qualname__.isidentifier():
        return f"{_module(said.__module__)}:{said.__qualname__}"
    for module in [*sys.modules.values()]:
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            if value is said and name.isidentifier() and getattr(module, "__file__", None):
                return f"{_module(module.__name__)}:{name}"
    try:
        found = io.BytesIO()
        _Pickler(found).dump(said)
    except Exception as error:
        raise SamzaError(
            f"{TOKEN} in the options, a {type(said).__name__}, can't be given to other processes: {error}. Write a "
            'function or a class at the top level of a module there, or its name, "MODULE:NAME", or run containers=1'
        ) from error
    return _PICKLED + base64.b64encode(found.getvalue()).decode()


def as_given(options: Mapping[str, object], said: str) -> dict[str, object]:
    """Return options as other processes read them; raises SamzaError for a value that can't be given to them."""
    found: dict[str, object] = {}
    for name, value in options.items():
        if name == TOKEN:
            found[name] = given(value)
        elif isinstance(value, os.PathLike):
            found[name] = os.fspath(value)
        elif value is None or isinstance(value, str | int | float):
            found[name] = value
        else:
            raise SamzaError(
                f"{said}: {name} in the options is a {type(value).__name__}, which can't be given to other processes; "
                "give it as text, or run containers=1"
            )
    return found


class _Pickler(pickle.Pickler):
    """Names what is of the program that was started as the other processes do, to which that is a module."""

    def reducer_override(self, value: object) -> Any:
        """Return how the other process finds a class or function again."""
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            return _made, (f"{_module('__main__')}:{value.__qualname__}",)
        return NotImplemented


def _module(name: str) -> str:
    return Path(getattr(sys.modules[name], "__file__", "") or "").stem if name == "__main__" else name


def _name(said: object) -> str:
    return getattr(said, "__qualname__", type(said).__qualname__)
