"""The places that keep changes for an application until it has pulled them, and the end of that."""

from __future__ import annotations

from typing import NamedTuple

from runtime.model.errors import SamzaError, command
from runtime.ports.connectors import PulledSource
from runtime.ports.environment import Environment
from runtime.systems.connectors.inbox import inbox_of, positions_of, pulled_from
from runtime.systems.connectors.schemes import connected_source


class PulledPlace(NamedTuple):
    """A place that an application pulls an input from by the name of a reader, for whom it `keeps` what that says."""

    stream: str
    inbox: str
    where: str
    reader: str
    keeps: str

    def told(self, app: str) -> str:
        """Return what is kept there, and how that ends."""
        said = f"{self.stream} is pulled from {self.where or 'a place'} by the reader {self.reader}"
        if not self.keeps:
            return f"{said}, for which nothing is kept there"
        ends = command(f"delete {app} --bind {self.stream}=URL")
        return f"{said}: {self.keeps}, will be there until {ends} removes that"


def pulled_places(environment: Environment, app: str) -> list[PulledPlace]:
    """Return the places that an application has begun to pull from, as its inboxes note them."""
    start, end, found = f"{app}.inbox.", positions_of(""), []
    for positions in sorted(environment.streams()):
        inbox = positions.removesuffix(end)
        if inbox == positions or not inbox.startswith(start):
            continue
        where, reader, keeps = pulled_from(environment, inbox)
        if reader:
            found.append(PulledPlace(inbox.removeprefix(start).rpartition(".")[0], inbox, where, reader, keeps))
    return found


def forget_place(environment: Environment, app: str, stream: str, url: str) -> PulledPlace:
    """Drop what a place keeps for an application that nobody runs, then the inbox; raises SamzaError.

    A crash in between leaves the inbox, so that it can be done again.
    """
    source = connected_source(url)
    if not isinstance(source, PulledSource):
        raise SamzaError(f"--bind {stream}=...: nothing is kept there: give the URL of a table that was pulled")
    try:
        wanted = inbox_of(app, stream, source.name)
        found = next((one for one in pulled_places(environment, app) if one.inbox == wanted), None)
        if found is None:
            raise SamzaError(f"{app} has never pulled {stream!r} from {source.name}: give the URL that it was bound to")
        source.forget(found.reader)
    finally:
        source.close()
    environment.delete_stream(found.inbox)
    environment.delete_stream(positions_of(found.inbox))
    return found
