"""The program of a container: loads the application that another process runs, and takes a share of its tasks."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from planner.errors import PlanError
from runtime.container import serve
from runtime.containers import Containers
from runtime.errors import SamzaError
from runtime.run import run_containers
from runtime.systems.kafka_topic import KafkaCluster
from runtime.talk import Failed, Start
from runtime.users_lines import deepest, user_lines
from samza_dsl import checks
from samza_dsl.app import App
from samza_dsl.load_app import load_app, whereabouts
from samza_dsl.placement import found, named

PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from samza_dsl.container import main; main()"
"""What a Python is started with; the path to import from follows, and the descriptor of the line."""


def run_app(app: App, data: str | Path, number: int, **how: Any) -> Containers:
    """Run an application in so many containers to its end; raises `CantLoad` where they could not find it."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
    where = whereabouts(app)
    how["placement"] = named(how.get("placement", "sticky"))
    if isinstance(how.get("environment"), str):
        how["environment"] = KafkaCluster(how["environment"])
    return run_containers(app.graph(), app.options, app.around, data, number, command, where, **how)


def main() -> None:
    """Be a container."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process that started it decides
    with socket.socket(fileno=int(sys.argv[2])) as connection:
        start = msgspec.json.decode(_first_line(connection), type=Start)
        checks.loads_only = True
        try:
            app = load_app(start.module, start.name)
            graph, placement = app.graph(), found(start.share.placement)
        except Exception as error:
            connection.sendall(msgspec.json.encode(_failed(error)) + b"\n")
            sys.exit(1)
        finally:
            checks.loads_only = False
        sys.exit(asyncio.run(serve(connection, start, graph, app.around, _failed, placement)))


def _first_line(connection: socket.socket) -> bytes:
    """Read one line, and nothing of what comes after it."""
    line = b""
    while not line.endswith(b"\n"):
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            sys.exit(1)
        line += connection.recv(seen.index(b"\n") + 1 if b"\n" in seen else len(seen))
    return line


def _failed(error: BaseException) -> Failed:
    expected = isinstance(error, SamzaError | PlanError)
    text = str(error) if expected or str(error) else repr(error)
    return Failed(kind=type(error).__name__, text=text, lines=tuple(user_lines(deepest(error))))
