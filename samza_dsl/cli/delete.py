"""The commands that delete an application: mark it as deleted, and collect what the marked ones have kept."""

from __future__ import annotations

from typing import Annotated

import typer

from runtime.model.urls import shown_url
from runtime.opening.deletion import collect, deleted
from runtime.opening.deletion import delete as mark_deleted
from runtime.systems.connectors.places import forget_place, pulled_places
from samza_dsl.cli.checkpoint import AppArgument, agreed
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.output import say
from samza_dsl.room.notes import forget


def delete(
    target: AppArgument,
    bind: Annotated[
        list[str] | None,
        typer.Option("--bind", metavar="INPUT=URL", help="Drop what a database keeps for the input as well."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Mark an application, which must not be running, as deleted: samza-dsl gc then removes what it has kept.

    Until then it may be run again, and goes on where it was. Its inputs and outputs stay in any case. With --bind what
    a database keeps for it is dropped now, as slots and triggers, and with that the input that was pulled from there.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = agreed(target, place, "Delete the application", yes)
        for said in bind or ():
            stream, equals, url = said.partition("=")
            if not equals:
                raise Mistake(f"--bind {said} names no place: write --bind items=sqlite:///shop.db?table=items")
            gone = forget_place(place, app, stream, url)
            say(f"{shown_url(url)} keeps nothing more for the reader {gone.reader}")
        for left in pulled_places(place, app):
            say(left.told(app))
        mark_deleted(place, app)
        say(f"{app} is deleted: samza-dsl gc removes its positions and state")


def gc(data: DataOption = DEFAULT, environment: EnvironmentOption = None, kafka_options: KafkaOption = None) -> None:
    """Remove the positions and state of deleted applications, what lies between their stages, and notes of their runs.

    On a cluster it removes their changelogs, and of the state on machines what is in the data directory of this one.
    """
    with told(), opened(data, environment, kafka_options) as place:
        # What is noted of runs is removed, too, be it that all else was gone already.
        found = {app: (collect(place, app), forget(data, app)) for app in deleted(place)}
        collected = [app for app, (had_kept, had_noted) in found.items() if had_kept or had_noted]
        for app in collected:
            say(f"removed what {app} had kept")
        if not collected:
            say("there is nothing to remove")
