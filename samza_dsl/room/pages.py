"""The pages of the control room: one for the browser, what it asks for, and what it may have done."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from importlib.resources import files

import msgspec

from runtime.model.errors import SamzaError
from runtime.watching.server import Answer, Page, Request
from samza_dsl.room.runs import NotedRuns, Place, as_json

JSON = "application/json"
ANSWER_S = 8.0
"""The time that an environment has to answer, as a connection is held for no longer than 10 s; brokers may be away."""
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
"""What the page may load: its own two files, what it asks for, and the style in a picture; nothing of others."""
ASSETS = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/room.css": ("room.css", "text/css; charset=utf-8"),
    "/room.js": ("room.js", "text/javascript; charset=utf-8"),
}


class ControlRoom:
    """Shows runs as pages, and does what is asked for there if actions are allowed.

    Pages are answered in the thread of a server; all that reads files in one of its own, and what asks an environment
    in one for each place: brokers that do not answer hold up nothing else.
    Invariant: nothing is changed without the proof that a page of this server has asked for it, which no other page
    can read.
    """

    def __init__(self, places: Sequence[Place], *, allow_actions: bool = False) -> None:
        self._runs = NotedRuns(places)
        self._allow_actions = allow_actions
        self._proof = secrets.token_urlsafe(24)
        self._thread = ThreadPoolExecutor(1, "samza-dsl-room")

    @property
    def pages(self) -> dict[str, Page]:
        """The pages by their paths."""
        read: dict[str, Callable[[Mapping[str, str]], str]] = {
            "/api/runs": lambda _: as_json([one.brief() for one in self._runs.all()]),
            "/api/run": lambda said: as_json(self._runs.get(said.get("run", "")).look()),
            "/api/history": lambda said: self._runs.get(said.get("run", "")).samples(_whole(said, "after")),
            "/api/events": lambda said: as_json(self._runs.get(said.get("run", "")).happened()),
        }
        asked: dict[str, Callable[[Mapping[str, str]], str]] = {
            "/api/letters": lambda said: as_json(self._runs.letters(self._runs.get(said.get("run", "")))),
            "/api/job": lambda said: as_json(self._runs.job(self._runs.get(said.get("run", "")))),
        }
        return {
            **{path: Page(_asset(*asset)) for path, asset in ASSETS.items()},
            **{path: self._reading(ask, JSON) for path, ask in read.items()},
            **{path: self._reading(ask, JSON, of_environment=True) for path, ask in asked.items()},
            "/api/picture": self._reading(lambda said: self._runs.get(said.get("run", "")).picture(), "image/svg+xml"),
            "/api/session": Page(self._session),
            "/api/act": Page(self._act, acts=True),
        }

    def close(self) -> None:
        """Let go of all that was opened; nobody asks for a page any more."""
        self._thread.submit(self._runs.close)
        self._thread.shutdown()

    def _reading(self, ask: Callable[[Mapping[str, str]], str], type: str, of_environment: bool = False) -> Page:
        async def answer(request: Request) -> Answer:
            try:
                said = request.query
            except ValueError:
                return Answer(400, as_json({"error": "that is no request of this page"}), JSON)
            return await self._answered(lambda: ask(said), type, said.get("run", "") if of_environment else None)

        return Page(answer)

    async def _answered(self, ask: Callable[[], str], type: str, asked_of: str | None = None) -> Answer:
        """Answer from the thread that reads, or asks a run's environment; what can't be had is told in words."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S):
                thread: Executor = self._thread
                if asked_of is not None:
                    thread = await loop.run_in_executor(thread, self._runs.asker, asked_of)
                return Answer(200, await loop.run_in_executor(thread, ask), type)
        except (SamzaError, msgspec.ValidationError) as error:
            return Answer(409, as_json({"error": str(error)}), JSON)
        except TimeoutError:
            return Answer(503, as_json({"error": "the environment does not answer"}), JSON)

    async def _session(self, _: Request) -> Answer:
        """Tell a page of this server whether it may ask for actions, and by what it proves that it is one."""
        found = {"actions": self._allow_actions, "proof": self._proof if self._allow_actions else ""}
        return Answer(200, as_json(found), JSON)

    async def _act(self, request: Request) -> Answer:
        if not self._allow_actions:
            return Answer(403, as_json({"error": "this page is only read: start it with --ui-allow-actions"}), JSON)
        if not hmac.compare_digest(request.proof.encode("utf-8", "replace"), self._proof.encode()):
            return Answer(403, as_json({"error": "no page of this server asks: load it anew"}), JSON)
        try:
            said = msgspec.json.decode(request.body, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Answer(400, as_json({"error": "the body is no object of JSON"}), JSON)
        run, what = (str(said.pop(name, "")) for name in ("run", "what"))
        return await self._answered(
            lambda: as_json({"done": self._runs.act(self._runs.get(run), what, said)}),
            JSON,
            None if what in ("commit", "stop") else run,
        )


def _asset(name: str, type: str) -> Callable[[Request], Awaitable[Answer]]:
    text = (files("samza_dsl.room") / "assets" / name).read_text("utf-8")

    async def answer(_: Request) -> Answer:
        return Answer(200, text, type, POLICY)

    return answer


def _whole(said: Mapping[str, str], name: str) -> int:
    found = said.get(name, "-1")
    return int(found) if found.isascii() and found.lstrip("-").isdecimal() and len(found) < 20 else -1
