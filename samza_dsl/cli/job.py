"""The commands on whole applications: who runs which task where, their size, the control room, and their end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from planner.model.flow import counted
from planner.model.virtual_tasks import wrong_factor
from runtime.job.job_model import ContainerOfJob, Job, TaskOfJob, job_of
from runtime.model.assignment import REFUSED, Scale
from runtime.model.clock import monotonic_ms, sleep_ms
from runtime.model.metrics import Metrics
from runtime.model.urls import shown_url
from runtime.opening.deletion import collect, deleted
from runtime.opening.deletion import delete as mark_deleted
from runtime.opening.rescaling import Scaled, scalings
from runtime.opening.shared_run import SharedEnvironment, starter_of
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.systems.connectors.places import forget_place, pulled_places
from runtime.systems.host.addresses import address_of, is_local
from runtime.watching.watcher import page_server
from samza_dsl.cli.checkpoint import AppArgument, agreed, known, named
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, cluster_at, opened, options_in
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.run import UI_ADDRESS, ActionsOption, TracebackOption, UiAddressOption
from samza_dsl.room.notes import forget
from samza_dsl.room.pages import ControlRoom
from samza_dsl.room.runs import places_of

LONGEST_MS, LOOK_MS = 60_000.0, 50.0
"""The time that a run has to take up its new size, and the interval between two looks."""
NOTED_MS = 10_000.0
"""The time that it has to note what has become of it, where it may have been killed before."""

job = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at how an application is run, and pack what runs it."
)


@job.command()
def show(
    target: AppArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show the job model as it is now: options, containers and their hosts, and which partitions each task reads."""
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = named(target, place)
        found = job_of(place, known(place, app))
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        else:
            _print(found)


@job.command()
def pack(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="The zip to write.")] = Path("samza_dsl.zip"),
    traceback: TracebackOption = False,
) -> None:
    """Pack samza-dsl itself into a zip, for `spark-submit --py-files`, where machines of a cluster have none."""
    from runtime.spark.own_code import pack as write_zip

    with told(whole=traceback):
        if to.suffix != ".zip":
            raise Mistake(f"{to} is no zip by its name, which Python imports from: write {to.with_suffix('.zip')}")
        try:
            write_zip(to)
        except OSError as error:
            raise Mistake(f"can't write {to}: {error.strerror}; check the path and its permissions") from error
        say(f"wrote {to}")


@job.command()
def history(
    target: AppArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show how the tasks of an application were split and merged: when, from and to what, why, and how long it took."""
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = named(target, place)
        found = scalings(place.checkpoints(known(place, app)))
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
            return
        for one in found:
            say(told_of(one, isinstance(place, LiveEnvironment)))
        if not found:
            say(f"{app} has had one size so far")


def scale(
    target: AppArgument,
    factor: Annotated[
        int | None, typer.Option(metavar="N", help="Split each task into so many virtual ones: 1, 2, 4, 8 …")
    ] = None,
    containers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Run it in so many containers, where it runs in several.")
    ] = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Split or merge the tasks of an application while it runs; its state is kept, and each record counts once.

    Where it does not run, its tasks are split so from its next start on.
    """
    with told():
        # What is wrong whatever the application: said before anybody asks where that lies.
        if factor is None and containers is None:
            raise Mistake("a size is to be said: samza-dsl scale APP --factor 4, or --containers 3")
        if factor is not None and (wrong := wrong_factor(factor)):
            raise Mistake(f"--factor {wrong}")
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = named(target, place)
        known(place, app)
        job = job_of(place, app)
        if (containers or 1) > 1 and job.is_alone:
            raise Mistake(
                f"{app} runs in one process, without containers: end it, and run it with --containers {containers}; or "
                "leave --containers out here"
            )
        # While all containers end, and others begin, none is known for a moment.
        begins = not job.containers and isinstance(place, SharedEnvironment) and place.runs(app).is_run()
        runs = bool(job.containers) or begins
        if containers is not None and not runs:
            raise Mistake(f"{app} does not run: its containers are as many as the next run says with --containers")
        before = scalings(place.checkpoints(app))
        asked = place.ask_scale(app, Scale(factor, containers))
        if not runs:
            if factor is not None:
                unless = "unless its Options(elasticity=...) say something else"
                say(f"{app} does not run: its tasks are split into {factor} from its next start on, {unless}")
            return
        size = Scale(factor or job.factor, containers)
        asyncio.run(_await(place, app, asked, size, before, len(_begun(job))))


def _begun(job: Job) -> Sequence[ContainerOfJob]:
    """Return the containers of whoever began a run, beside which others may have joined."""
    return [one for one in job.containers if not starter_of(one.name)] or job.containers


async def _await(
    place: Environment, app: str, asked: Scale, wanted: Scale, before: Sequence[Scaled], number: int
) -> None:
    """Wait until the run, which had so many containers, has the size that is wanted, and tell what is noted of it."""
    until_ms, at_work_ms = monotonic_ms() + LONGEST_MS, 0.0
    while monotonic_ms() < until_ms:
        found, job = scalings(place.checkpoints(app)), job_of(place, app)
        newest = place.asked_scale(app)
        # Not seen yet where somebody has died in a transaction: what lies behind it can be read once that is over.
        if newest != asked and newest.number >= asked.number:
            if newest.why.startswith(REFUSED) and newest.number == asked.number:
                raise Mistake(f"{app} can't have this size: {newest.wrong or 'its log says why'}")
            raise Mistake(f"{app} was asked for another size meanwhile")
        # Containers that end are none for a while, and those that begin have no task for another.
        at_work = bool(job.containers) and all(one.container for one in job.tasks)
        begun = len(_begun(job))
        are_all_here = begun >= number if wanted.containers is None else begun == wanted.containers
        if job.factor == wanted.factor and are_all_here and at_work:
            # What is noted at the cut is completed once tasks go on: so long it is waited for, but not for ever.
            is_noted = found == before or (found[-1].moved is not None and found[-1] not in before)
            at_work_ms = at_work_ms or monotonic_ms()
            if not is_noted and monotonic_ms() < at_work_ms + NOTED_MS:
                await sleep_ms(LOOK_MS)
                continue
            if found != before:
                say(told_of(found[-1], isinstance(place, LiveEnvironment)))
            tasks, containers = len(job.tasks), len(job.containers)
            say(f"{app}: {tasks} tasks in {containers} container{'s' * (containers > 1)}")
            return
        await sleep_ms(LOOK_MS)
    raise Mistake(
        f"{app} has not taken it up within {LONGEST_MS / 1_000:.0f} s: on Kafka it copies its state first, while it "
        f"goes on, and samza-dsl job history {app} tells when it has; if it ends before, this size holds from its next "
        "start on, unless its Options(elasticity=...) say something else"
    )


def ui(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PLACE]...", help="Data directories, and clusters as kafka://HOST:PORT; else --data."),
    ] = None,
    ui_address: UiAddressOption = UI_ADDRESS,
    metrics_token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            "--metrics-token-file",
            metavar="FILE",
            help="Show it to who has the token in it, as the password.",
        ),
    ] = None,
    ui_allow_actions: ActionsOption = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Serve the control room: a page that shows all runs of some data directories and clusters live, until Ctrl-C.

    A run notes how it goes in the data directory of its machine. Of an application that runs elsewhere on a cluster,
    the page shows what the cluster knows: its job, checkpoints and dead letters.
    """
    with told():
        found = [one for one in places or [] if not is_cluster(one)]
        directories = [*map(Path, found)] or [data]
        addresses = [one for one in places or [] if is_cluster(one)] or ([environment] if environment else [])
        missing = [str(one) for one in directories if not one.is_dir()]
        if found and missing:
            raise Mistake(f"there is no data directory at {', '.join(missing)}: a run makes one")
        options = options_in(kafka_options) if addresses else {}
        room = ControlRoom(
            [*places_of(directories, [cluster_at(one, options) for one in addresses])],
            allow_actions=ui_allow_actions,
        )
        try:
            server = page_server(
                Metrics(address=ui_address, token_file=metrics_token_file, ui=True), ui_address, room.pages
            )
            server.start()
            try:
                host = address_of(ui_address)[0]
                say(f"the control room: http://{'localhost' if is_local(host) else host}:{server.port}/")
                _wait_for_signal()
            finally:
                server.close()
        finally:
            room.close()


def _wait_for_signal() -> None:
    """Wait until the process is asked to end."""
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    # In steps: a wait without an end hears no signal on some systems.
    while not done.wait(1.0):
        pass


def is_cluster(place: str) -> bool:
    """Whether a place is a cluster of brokers, and not a directory.

    >>> is_cluster("kafka://localhost:9092"), is_cluster("data")
    (True, False)
    """
    return place.startswith("kafka://")


def told_of(one: Scaled, is_on_hosts: bool = False) -> str:
    """Return a change of an application's size in words; what becomes of state goes by whether hosts have copies.

    >>> told_of(Scaled(at_ms=0, before=1, now=4, why="asked for", took_ms=12.3))
    '1970-01-01 00:00:00 UTC: each task split into 4 and not 1 (asked for), in 12 ms; no entry of state was moved'
    >>> told_of(Scaled(0, 1, 4, "asked for", 812.0, moved=1_400)).partition("), in ")[2]
    '812 ms; 1,400 entries of state were moved'
    """
    at = datetime.fromtimestamp(one.at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    how = f"each task split into {one.now} and not {one.before}" if one.now != one.before or not one.containers else ""
    if one.containers:
        before, now = one.containers
        how += f"{', ' * bool(how)}{now} container{'s' * (now > 1)} and not {before}"
    if one.moved:
        kept = "1 entry of state was moved" if one.moved == 1 else f"{one.moved:,} entries of state were moved"
    elif is_on_hosts and one.moved is None:
        kept = "each host copies entries of its tasks from what it has"
    else:
        kept = "no entry of state was moved"
    return f"{at} UTC: {how} ({one.why}), in {one.took_ms:,.0f} ms; {kept}"


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


def _print(found: Job) -> None:
    model = f", job model {found.model}" if found.model else ""
    say(f"{found.app} on {found.environment}, generation {found.generation}{model}\n")
    if found.options is not None:
        options = msgspec.structs.asdict(found.options)
        print_rows([Column("option"), Column("value")], [[name, str(value)] for name, value in options.items()])
        say("")
    if found.containers:
        rows = [[one.name, one.host, counted(len(one.tasks), "task")] for one in found.containers]
        print_rows([Column("container"), Column("host"), Column("")], rows)
    else:
        say("no container is known to live")
    say("")
    has_standbys = any(one.standby for one in found.tasks)
    columns = [Column("task", right=True), Column("container"), Column("host"), Column("reads")]
    columns += [Column("standby")] if has_standbys else []
    print_rows(columns, (_row(one)[: len(columns)] for one in found.tasks))


def _row(task: TaskOfJob) -> list[str]:
    reads = ", ".join(f"{stream}:{partition}" for stream, partition in task.reads)
    return [task.name, task.container or "-", task.host or "-", reads, ", ".join(task.standby) or "-"]
