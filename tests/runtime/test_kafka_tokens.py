"""A token provider that gives none is told, whatever it does instead, and holds up nothing else."""

import asyncio
import threading

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError

from runtime.model.errors import SamzaError
from runtime.systems.kafka.client import tokens
from runtime.systems.kafka.client.tokens import Provider, provider_of
from tests.faults.processes import wait_until


def exits():
    raise SystemExit("log in first")


def interrupts():
    raise KeyboardInterrupt


def stops():
    raise StopIteration(3)


def fails():
    raise KeyError("CLIENT_ID")


async def exits_later():
    await asyncio.sleep(0)
    raise SystemExit(2)


class Exiting(AbstractTokenProvider):
    async def token(self):
        raise SystemExit("log in first")


NONE = {
    "exits": (exits, r"has failed: SystemExit\('log in first'\)"),
    "interrupts": (interrupts, r"has failed: KeyboardInterrupt"),
    "stops": (stops, r"has failed: .*StopIteration"),
    "fails": (fails, r"has failed: KeyError\('CLIENT_ID'\)"),
    "exits later": (exits_later, r"has failed: SystemExit\(2\)"),
    "of a class": (Exiting(), r"has failed: SystemExit"),
    "text that is none": (str, "returned empty text"),
    "bytes": (bytes, "returned bytes"),
}


@pytest.mark.parametrize("what", NONE)
def test_a_provider_that_gives_no_token_is_told(what):
    said, told = NONE[what]
    with pytest.raises(AuthenticationFailedError, match=told):
        asyncio.run(Provider(said).token())


@pytest.mark.parametrize("is_async", [False, True])
def test_one_that_does_not_answer_is_told_and_holds_up_nothing_meanwhile(is_async, monkeypatch):
    monkeypatch.setattr(tokens, "TOKEN_S", 0.2)
    end = threading.Event()

    async def waits():
        await asyncio.Event().wait()

    async def both():
        asked = asyncio.ensure_future(Provider(waits if is_async else end.wait).token())
        await asyncio.sleep(0)
        assert not asked.done()  # and so the loop goes on
        return await asked

    try:
        with pytest.raises(AuthenticationFailedError, match=r"has not answered for 0.2 s"):
            asyncio.run(both())
    finally:
        end.set()


def test_one_is_asked_by_one_client_at_a_time():
    within, most = [], []

    def counted():
        within.append(None)
        most.append(len(within))
        if len(most) == 1:  # the others are called by now, or wait for this one
            wait_until(lambda: sum(one.name == "samza-dsl-token" for one in threading.enumerate()) == 5)
        within.pop()
        return "token"

    async def all_of_them():
        return await asyncio.gather(*(Provider(counted).token() for _ in range(5)))

    assert asyncio.run(all_of_them()) == ["token"] * 5
    assert most == [1] * 5


def test_what_extends_a_token_and_fails_is_told():
    class Extending(AbstractTokenProvider):
        async def token(self):
            return "token"

        def extensions(self):
            raise KeyError("TENANT")

    with pytest.raises(AuthenticationFailedError, match=r"has failed: KeyError\('TENANT'\)"):
        Provider(Extending()).extensions()


def test_a_class_that_can_not_be_made_and_a_module_that_can_not_be_loaded_are_told(tmp_path, monkeypatch):
    class Needy(AbstractTokenProvider):
        def __init__(self, secret):
            self.secret = secret

        async def token(self):
            return self.secret

    with pytest.raises(SamzaError, match=r"a .*Needy can't be made without arguments: .*'secret'"):
        provider_of(Needy)
    (tmp_path / "broken_tokens.py").write_text("import os\nsecret = os.environ['NOBODY_SET_THIS']\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SamzaError, match=r"sasl_oauth_token_provider='broken_tokens:get': its module can't be loaded"):
        provider_of("broken_tokens:get")
