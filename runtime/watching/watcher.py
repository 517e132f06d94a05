"""Lets others watch a run over HTTP: its metrics, whether its event loop turns, and whether it is ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from runtime.functions.calls import Tracing
from runtime.model.clock import monotonic_ms, sleep_ms, wall_clock_ms
from runtime.model.errors import SamzaError
from runtime.model.metrics import ContainerMetrics, Metrics, RunMetrics, restores_told, unread
from runtime.model.restores import coming_back
from runtime.run.driver import Watch, Watched, numbers_of
from runtime.systems.host.addresses import ANY_PORT, address_of, advertised, is_local, told_to_others
from runtime.systems.http.request_parts import token_in
from runtime.watching.exposition import prometheus_text
from runtime.watching.server import Answer, Page, PageServer, Request, host_of

STAMP_MS = 1_000.0
"""The interval at which the event loop shows that it turns."""
STUCK_MS = 30_000.0
"""The time without that, or without a word of a container, after which the run is not alive: a step takes 0.1 s."""
ANSWER_S = 4.0
"""The time that the event loop has to tell its numbers; a scrape waits 10 s."""
ALIVE_S = 0.8
"""The time that it has for that where only life is asked for: a probe waits a second, if nothing else is said to it."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
_log = logging.getLogger("samza_dsl")


class Watcher:
    """Tells others of a run: it is watched in its event loop, and asked for in the thread of a server.

    One may watch several runs, one after the other, as where an application begins anew. Invariant: numbers are taken
    in the event loop of the run, and after its end they are the last ones.
    """

    def __init__(self, ready_lag: int | None = None, app: str = "") -> None:
        self._ready_lag = ready_lag
        self._run: Watched | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app = app
        self._last = RunMetrics()
        self._stamp_ms = monotonic_ms()

    @property
    def pages(self) -> dict[str, Page]:
        """The pages by their paths; health is for anybody who may ask at all."""
        return {
            "/metrics": Page(self._metrics, by_name=True),
            "/livez": Page(self._livez, is_secret=False),
            "/readyz": Page(self._readyz, is_secret=False),
        }

    async def watch(self, run: Watched) -> None:
        """Watch a run beside it, in its event loop, until cancelled at its end."""
        self._run, self._loop, self._app = run, asyncio.get_running_loop(), run.plan.app
        try:
            while True:
                self._stamp_ms = monotonic_ms()
                await sleep_ms(STAMP_MS)
        finally:
            self._stamp_ms = monotonic_ms()
            with suppress(Exception):  # a run that has failed may have no numbers
                self._last = run.metrics()
            self._loop = None

    async def _look(self, patience_s: float) -> RunMetrics | None:
        """Return the numbers of this moment, the last ones of a run that is over; None where the loop gives none."""
        run, loop = self._run, self._loop
        if run is None and (restoring := coming_back(self._app)):
            # A run of one process brings state back before it begins.
            return RunMetrics(containers=(ContainerMetrics(container="0", settled=False, restoring=restoring),))
        if run is None or loop is None:
            return self._last

        with suppress(TimeoutError, SamzaError, RuntimeError):
            async with asyncio.timeout(patience_s):
                self._last = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(numbers_of(run), loop))
                return self._last
        # It may have ended between the two looks.
        return self._last if self._loop is None else None

    async def _metrics(self, _: Request) -> Answer:
        found = await self._look(ANSWER_S)
        if found is None:
            return Answer(503, f"the event loop has not turned for {self._silent_ms / 1_000:.1f} s\n")
        return Answer(200, prometheus_text(self._app, found, wall_clock_ms()), TEXT)

    @property
    def _silent_ms(self) -> float:
        return monotonic_ms() - self._stamp_ms

    async def _livez(self, _: Request) -> Answer:
        """Tell whether the event loop turns, here and in each container; a run that begins or has ended is alive."""
        if self._loop is None:
            return Answer(200, "alive\n")
        if self._silent_ms > STUCK_MS:
            return Answer(503, f"the event loop has not turned for {self._silent_ms / 1_000:.0f} s\n")
        # A loop that is slow to answer is alive until `STUCK_MS` are over; one that answers tells of silent containers.
        found = await self._look(ALIVE_S)
        silent = [one for one in found.containers if one.silent_ms > STUCK_MS] if found is not None else []
        if silent:
            told = [f"container {one.container} has said nothing for {one.silent_ms / 1_000:.0f} s\n" for one in silent]
            return Answer(503, "".join(told))
        return Answer(200, "alive\n")

    async def _readyz(self, _: Request) -> Answer:
        reasons = [*self._not_ready(await self._look(ANSWER_S))]
        return Answer(503, "".join(f"{reason}\n" for reason in reasons)) if reasons else Answer(200, "ready\n")

    def _not_ready(self, found: RunMetrics | None) -> Iterator[str]:
        """Yield the reasons for which the run is not ready."""
        run = self._run
        if found is not None:
            yield from (
                f"container {one.container} {words}" for one in found.containers for words in restores_told(one)
            )
        if run is None:
            yield "the run has not begun: it opens its inputs, and brings state back"
            return
        if run.failed:
            yield "the run has failed"
        elif self._loop is None:
            yield "the run has ended"
        elif run.stopping:
            yield "the run is stopping"
        if found is None:
            yield "the event loop does not answer"
            return
        for one in found.containers:
            if not one.settled:
                yield f"container {one.container} has not all tasks that it shall have, with their state"
        unowned = sorted({one.task for one in found.inputs if not one.owned})
        if unowned:
            yield f"no container has {len(unowned)} of the tasks"
        lag = sum(unread(found.inputs).values())
        if self._ready_lag is not None and lag > self._ready_lag:
            yield f"{lag:,} records are not read yet, and {self._ready_lag:,} may be"


class Served(NamedTuple):
    """A run that is served: what watches it, the address that others are told for its state, and who traces it."""

    watch: Watch
    state_address: str
    hearing: Tracing | None


@contextmanager
def served(
    said: Metrics, app: str, watches: Iterable[Watch] = (), pages: Mapping[str, Page] | None = None, brokers: str = ""
) -> Iterator[Served]:
    """Serve and tell what `said` says of an application during a block, and more `pages`; yields what watches a run.

    That watches it as all `watches` do, too. The server is there before the run is, and from one run to the next.
    Where the address is each of this machine's, others know it by the one that leads to the `brokers`. Raises
    SamzaError for an address or a token that can't be had.
    """
    watches, state_address, hearing = [*watches], "", None
    if said.advertise is not None:
        _check_advertised(said, said.advertise, brokers)
    with ExitStack() as open_until_the_end:
        if said.address is not None:
            watcher = Watcher(said.ready_lag, app)
            server = page_server(said, said.address, {**watcher.pages, **(pages or {})})
            server.start()
            open_until_the_end.callback(server.close)
            watches.append(watcher.watch)
            # Of a port that the system has chosen nobody would know else.
            level = logging.WARNING if said.address.endswith(":0") else logging.INFO
            _log.log(level, "metrics and health of %s are served at http://%s", app, server.address)
            # Without a token others are not shown any state.
            if said.advertise is not None:
                state_address = advertised(said.advertise, server.port)
            elif is_local(server.host) or said.token_file is not None:
                state_address = told_to_others(server.host, server.port, brokers)
        if said.opentelemetry:
            from runtime.watching.telemetry import telling

            traced = telling(app)
            watches.append(traced.watch)
            hearing = Tracing(traced.hear, traced.call)

        async def all_of_them(run: Watched) -> None:
            await asyncio.gather(*(one(run) for one in watches))

        yield Served(all_of_them, state_address, hearing)


def page_server(said: Metrics, address: str, pages: Mapping[str, Page]) -> PageServer:
    """Return a server of pages for those who may see them; raises SamzaError for a wrong address or token."""
    try:
        host, port = address_of(address)
    except ValueError as error:
        raise SamzaError(f"metrics: {error}; write instead: ':9464', or '0.0.0.0:9464'") from None
    if said.ui and said.token_file is None and not is_local(host):
        raise SamzaError(
            f"metrics: the page of a run is for who has a token, where others than this machine can ask: give "
            f"token_file= (--metrics-token-file; --token-file of samza-dsl ui) with {said.address!r}"
        )
    known_as = advertised(said.advertise, port or ANY_PORT) if said.advertise is not None else ""
    return PageServer(host, port, pages, token_in(said.token_file), host_of(known_as))


def _check_advertised(said: Metrics, address: str, brokers: str) -> None:
    """Refuse an address that others can't ask at; raises SamzaError, also where nobody is told or asked for a token."""
    try:
        advertised(address, ANY_PORT)
    except ValueError as error:
        raise SamzaError(f"metrics: advertise: {error}; write instead: 'HOST', or 'HOST:PORT'") from None
    if not brokers or said.address is None:
        raise SamzaError(
            "metrics: advertise= is the address at which other machines of a cluster ask for state: give environment= "
            "and address= as well, or leave it out"
        )
    if said.token_file is None:
        raise SamzaError(
            "metrics: what others ask for at advertise= is for who has a token: give token_file= "
            "(--metrics-token-file) as well"
        )
