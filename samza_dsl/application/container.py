"""The program of a container, which loads the application of another process and runs a share of its tasks."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys

import msgspec

from operators.core.wording import askable, class_name, encodable, shown, traced, words_of
from planner.model.errors import PlanError
from runtime.containers.protocol import Failed, Start
from runtime.containers.supervisor import Containers, run_containers
from runtime.containers.worker import LoadedApplication, serve
from runtime.functions.calls import Tracing
from runtime.functions.user_lines import deepest, user_lines
from runtime.model.errors import ExitAsked, SamzaError
from runtime.model.metrics import Metrics
from runtime.run.settings import CrewSettings
from runtime.watching.telemetry import telling
from samza_dsl.application import run_request
from samza_dsl.application.app import App
from samza_dsl.application.loading import load_app, whereabouts
from samza_dsl.application.placement import found, named
from samza_dsl.application.run_request import RunRequest, settings_of
from samza_dsl.settings import logs

_log = logging.getLogger("samza_dsl")
PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from samza_dsl.application.container import main; main()"
)
"""The code that a container's Python is started with; its arguments: the import path, the log, a socket."""


def run_app(app: App, request: RunRequest) -> Containers:
    """Run an application in several containers to its end; raises `CantLoad` where they could not find it."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path), json.dumps(logs.configured())]
    crew = CrewSettings(
        number=request.containers,
        command=command,
        found=whereabouts(app),
        beside=request.beside,
        placement=named(request.placement),
        standby=request.standby,
        joins=request.join,
        opentelemetry=isinstance(request.metrics, Metrics) and request.metrics.opentelemetry,
    )
    return run_containers(app.pipeline(), request.data, crew, settings_of(request), request.watch)


def main() -> None:
    """Run as a container, and end with the exit code of its run."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process that started it decides
    with socket.socket(fileno=int(sys.argv[3])) as connection:
        start = msgspec.json.decode(_first_line(connection), type=Start)
        log = json.loads(sys.argv[2])

        def begins(start: Start) -> None:
            if log is not None:
                logs.configure(log[0], log[1], {**log[2], "container": start.share.container})

        begins(start)
        # The application's file may call `app.run` as it is loaded. That is refused: each container would start more.
        run_request.loads_only = True
        try:
            app = load_app(start.module, start.name)
            graph, placement = app.graph(), found(start.share.placement)
        except Exception as error:
            connection.sendall(msgspec.json.encode(_failed(error)) + b"\n")
            sys.exit(1)
        finally:
            run_request.loads_only = False
        # By its place among those of its starter, as its numbers are.
        place = start.share.container.rpartition(".")[0].rpartition(".")[2]
        traced = telling(app.name, place) if start.opentelemetry else None
        hearing = Tracing(traced.hear, traced.call) if traced is not None else None
        loaded = LoadedApplication(graph, app.around, _failed, placement, hearing, begins)
        sys.exit(serve(connection, start, loaded))


def _first_line(connection: socket.socket) -> bytes:
    """Read one line, and nothing of what comes after it."""
    # Peeked at, and only the line is taken: what follows belongs to the event loop's reader, which is not there yet.
    line = b""
    while not line.endswith(b"\n"):
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            sys.exit(1)
        line += connection.recv(seen.index(b"\n") + 1 if b"\n" in seen else len(seen))
    return line


def _failed(error: BaseException) -> Failed:
    error = askable(error)
    expected = isinstance(error, SamzaError | PlanError)
    text = words_of(error)
    lines = tuple(map(encodable, user_lines(deepest(error))))
    code = error.code if isinstance(error, ExitAsked) else 1
    told = text if expected or text else shown(error)
    if not (expected or lines):
        # Raised by no line of the user's: a bug of the library, of which its own lines are wanted.
        # As text: what a handler of a log does with an exception may be code of the user's, which has its own end.
        _log.error(
            "A container fails by a fault of samza-dsl itself: please report it, with these lines\n%s", traced(error)
        )
    return Failed(kind=class_name(error), text=told, lines=lines, code=code)
