"""The commands that delete an application: mark it as deleted, and collect what the marked ones have kept."""

from __future__ import annotations

from typing import Annotated

import typer

from runtime.opening.deletion import collect, deleted
from runtime.opening.deletion import delete as mark_deleted
from samza_dsl.cli.checkpoint import AppArgument, agreed
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import told
from samza_dsl.cli.output import say
from samza_dsl.room.notes import forget


def delete(
    target: AppArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Mark an application, which must not be running, as deleted: samza-dsl gc then removes what it has kept.

    Until then it may be run again, and goes on where it was. Its inputs and outputs stay in any case.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = agreed(target, place, "Delete the application", yes)
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
