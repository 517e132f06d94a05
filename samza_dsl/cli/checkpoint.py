"""The commands on an application's place in its inputs: checkpoint show and set, and reset."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from planner.model.plan import Plan
from runtime.model.checkpoint import SHARED, Position
from runtime.opening.deletion import check_not_shared
from runtime.opening.former_layout import check_set_back
from runtime.opening.rewind import begin_anew, intermediate_streams
from runtime.ports.environment import Environment, LiveEnvironment
from runtime.ports.streams import StreamConfig
from runtime.systems.connectors.places import pulled_places
from samza_dsl.cli.data import DEFAULT, DataOption, EnvironmentOption, KafkaOption, opened
from samza_dsl.cli.errors import Mistake, told
from samza_dsl.cli.output import Column, print_rows, say
from samza_dsl.cli.plan import plan_of
from samza_dsl.cli.settings import loaded
from samza_dsl.data.positions import Moves, has_state, move_keeping, move_resetting, set_back
from samza_dsl.view.readable import watermark_of

checkpoint = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at how far an application has come, and move it."
)

AppArgument = Annotated[str, typer.Argument(metavar="APP", help="The application: its name, or its file as app.py.")]

_PASSED = re.compile("(.*)![0-9a-f]+-[0-9]+")
"""The mark of a row that became a dead letter, as its sink had refused it: the output, and whose partition."""


@checkpoint.command()
def show(
    target: AppArgument,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Show how far an application has processed each partition of its inputs, as of its last commit."""
    with told(), opened(data, environment, kafka_options) as place:
        app, _ = named(target, place)
        found = place.checkpoints(known(place, app))
        say(f"{app}, generation {place.generation(app)}\n")
        streams = place.streams()
        written = _written(place, streams, [one for checkpoint in found.values() for one in checkpoint.positions])
        named_rows = [
            (task, position)
            for task in sorted(found, key=lambda task: (len(task), task))
            for position in found[task].positions
        ]
        named_rows += [("-", one) for one in _unread(place, app, streams)]
        lags = _lags(place, streams, written, [position for _, position in named_rows])
        rows = [[task, *_row(position, lag)] for (task, position), lag in zip(named_rows, lags, strict=True)]
        columns = [Column("task", right=True), Column("system"), Column("stream"), Column("partition", right=True)]
        columns += [Column("next offset", right=True), Column("lag", right=True), Column("watermark (UTC)")]
        print_rows(columns, rows)
        for line in _held(place, written):
            say(line)
        for output, offset in sorted(found[SHARED].outputs.items() if SHARED in found else []):
            passed = _PASSED.fullmatch(output)
            told_of = (
                f"{output}: written up to" if passed is None else f"{passed[1]}: its last dead letter is the row at"
            )
            say(f"output {told_of} {offset:,}")
        for pulled in pulled_places(place, app):
            say(pulled.told(app))


@checkpoint.command("set")
def set_position(
    target: AppArgument,
    stream: Annotated[
        str | None, typer.Argument(metavar="[STREAM[:PARTITION]]", help="All partitions, or one; else all inputs.")
    ] = None,
    offset: Annotated[
        str | None, typer.Argument(metavar="[OFFSET]", help="The next offset to read, or earliest, or latest.")
    ] = None,
    watermark: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Set event time back, as 2025-06-15 or '2025-06-15 15:06:40' (UTC)."),
    ] = None,
    state: Annotated[
        Literal["reset", "keep"] | None,
        typer.Option(help="Drop the application's state; or keep it, so that records may be late."),
    ] = None,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Set where an application, which must not be running, goes on reading, or set its event time back.

    What it has written stays. An application with state needs --state: with "reset" state, timers, watermarks and
    what lies between stages are dropped, and tables are read anew, for which APP must be its file; with "keep" all
    stays as it was, and records that are read again are late wherever their windows have fired.

    With --watermark instead of an offset, event time is set back where it is beyond that: after a record from a clock
    that was ahead, which had made late all that followed. What has fired has fired, and nothing is read again.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, plan = named(target, place)
        if watermark is not None:
            if offset is not None or state is not None:
                raise Mistake("--watermark sets event time back and moves nothing: leave OFFSET and --state out")
            _set_back(place, known(place, app), stream, watermark)
            return
        if stream is None or offset is None:
            raise Mistake("say what to set: STREAM[:PARTITION] OFFSET, or --watermark TIME")
        moves = _moves(place, known(place, app), stream, offset, plan)
        if state is None and has_state(place, app):
            raise Mistake(
                f"the application {app!r} has state, and a rewind must say what becomes of it: --state reset, or "
                "--state keep (records that are read again are late wherever their windows have fired)"
            )
        if state == "reset" and plan is None:
            raise Mistake(
                f"--state reset needs the application's file in place of {app!r}, as its plan says which streams "
                "are tables: samza-dsl checkpoint set app.py ..."
            )
        check_set_back(place, app, moves, plan)
        check_not_shared(place, app)
        # A run that goes on is refused here, or fenced: its next commit would undo what is set.
        place.own(app)
        if state == "reset" and plan is not None:
            move_resetting(place, app, moves, plan)
        else:
            move_keeping(place, app, moves)
        for (name, partition), position in moves.items():
            say(f"{app} reads {name}, partition {partition}, from offset {position:,} on")


def reset(
    target: AppArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    data: DataOption = DEFAULT,
    environment: EnvironmentOption = None,
    kafka_options: KafkaOption = None,
) -> None:
    """Drop an application's positions and state, and what lies between its stages; it must not be running.

    Its next run reads all inputs from their start. What it has written to its outputs stays there.
    """
    with told(), opened(data, environment, kafka_options) as place:
        app, plan = agreed(target, place, "Drop all positions and state of", yes)
        place.own(app)
        dropped = begin_anew(place, app, plan)
        say(f"{app} begins anew" + (f"; dropped {', '.join(sorted(dropped))}" if dropped else ""))


def named(target: str, environment: Environment) -> tuple[str, Plan | None]:
    """Return an application's name, and its plan where its file was named."""
    if not target.partition(":")[0].endswith(".py"):
        return target, None
    with told(loading=True):
        plan = plan_of(loaded(target), environment)[0]
    return plan.app, plan


def agreed(target: str, environment: Environment, question: str, yes: bool) -> tuple[str, Plan | None]:
    """Return the name, and the plan as `named` does, of an application that nobody runs, once the user has agreed.

    Raises `Mistake` where the answer is no.
    """
    app, plan = named(target, environment)
    check_not_shared(environment, known(environment, app))
    if not yes and not typer.confirm(f"{question} {app!r} in {environment}?"):
        raise Mistake("nothing was changed")
    return app, plan


def known(environment: Environment, app: str) -> str:
    """Return the name of an application that has run; raises `Mistake` for another."""
    if not environment.generation(app):
        raise Mistake(f"no application {app!r} has run on {environment}: check its name, which App(...) has, or --data")
    return app


def _set_back(environment: Environment, app: str, said: str | None, watermark: str) -> None:
    """Set the event time of all inputs of an application back, or of the one that was said."""
    try:
        at = datetime.fromisoformat(watermark)
    except ValueError:
        raise Mistake(f"--watermark {watermark!r} is no time: write 2025-06-15 or '2025-06-15 15:06:40'") from None
    at_ms = int(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1_000)
    inputs = {said} if said is not None else _inputs(environment, app)
    places = {(name, number) for one in inputs for name, number in _places(environment, app, one)}
    check_not_shared(environment, app)
    environment.own(app)
    before = set_back(environment, app, places, at_ms)
    for (name, number), was in sorted(before.items()):
        say(f"{name}, partition {number}: event time is set back from {watermark_of(was)} to {watermark_of(at_ms)}")
    if not before:
        say(f"event time of {app} is nowhere beyond {watermark_of(at_ms)}: nothing was changed")


def _inputs(environment: Environment, app: str) -> set[str]:
    """Return the streams that an application has a position in, and that lie not between its stages."""
    checkpoints = environment.checkpoints(app)
    known = {one.stream for found in checkpoints.values() for one in found.positions}
    return known - intermediate_streams(checkpoints)


def _moves(environment: Environment, app: str, said: str, offset: str, plan: Plan | None) -> Moves:
    positions = [one for found in environment.checkpoints(app).values() for one in found.positions]
    places = _places(environment, app, said, plan)
    bound = {(one.stream, one.partition) for one in positions if one.system != "log"}
    return {place: _offset(environment, *place, offset, place in bound) for place in places}


def _places(environment: Environment, app: str, said: str, plan: Plan | None = None) -> list[tuple[str, int]]:
    """Return the partitions of an input that STREAM[:PARTITION] names; raises `Mistake` where there are none."""
    name, _, number = said.rpartition(":") if ":" in said else (said, "", "")
    positions = [one for found in environment.checkpoints(app).values() for one in found.positions]
    known = _inputs(environment, app)
    is_absent = number.isdecimal() and all((one.stream, one.partition) != (name, int(number)) for one in positions)
    # Also of a stream between stages: where a checkpoint is lost, this is the way to give it one.
    if is_absent and name in {one.stream for one in positions}:
        known.add(name)
    # After a reset there is no position, and the plan alone says what is read.
    if not positions and plan is not None:
        known = {one.name for one in plan.streams if one.role == "input"}
    if name not in known:
        raise Mistake(f"{app!r} has no position in {name!r}: it reads {', '.join(sorted(known)) or 'nothing yet'}")
    streams = environment.streams()
    count = streams[name].partitions if name in streams else 0
    partitions = sorted({*range(count), *(one.partition for one in positions if one.stream == name)})
    if number:
        if not number.isdecimal() or int(number) not in partitions:
            raise Mistake(f"{name!r} has no partition {number!r}: it has 0 to {partitions[-1]}")
        partitions = [int(number)]
    return [(name, one) for one in partitions]


def _offset(environment: Environment, stream: str, partition: int, said: str, bound: bool) -> int:
    if bound:
        if said == "earliest" or said.isdecimal():
            return 0 if said == "earliest" else int(said)
        raise Mistake(f"{stream!r} is bound to a file: give the number of a record, or earliest, not {said!r}")
    start, end, _ = environment.offsets(stream, partition)
    if said in ("earliest", "latest"):
        return start if said == "earliest" else end
    if not said.isdecimal() or not start <= int(said) <= end:
        raise Mistake(
            f"{said!r} is no offset of {stream!r}, partition {partition}: it has {start} to {end}; or say earliest or "
            "latest"
        )
    return int(said)


def _written(environment: Environment, streams: Collection[str], known: Iterable[Position]) -> dict[str, list[int]]:
    """Return the ends of streams, by partition, with what open transactions have written; {} without a cluster."""
    if not isinstance(environment, LiveEnvironment):
        return {}
    names = {one.stream for one in known if one.system == "log" and one.stream in streams}
    return {name: environment.written(name) for name in sorted(names)}


def _unread(environment: Environment, app: str, streams: Mapping[str, StreamConfig]) -> Iterator[Position]:
    """Yield where partitions begin of inputs that no task has come to yet: they were added since."""
    positions = [one for found in environment.checkpoints(app).values() for one in found.positions]
    places = {(one.stream, one.partition) for one in positions}
    # What is bound to a file has nothing to do with a stream of its name.
    bound = {one.stream for one in positions if one.system != "log"}
    for name in sorted((_inputs(environment, app) - bound) & streams.keys()):
        for number in range(streams[name].partitions):
            if (name, number) not in places:
                yield Position("log", name, number, environment.offsets(name, number).start)


def _held(environment: Environment, written: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield the partitions of which open transactions hold records back."""
    for stream, ends in written.items():
        for partition, end in enumerate(ends):
            readable = environment.offsets(stream, partition).end
            if readable < end:
                place = f"{stream}, partition {partition}"
                yield f"{place}: an open transaction holds {end - readable:,} offsets back, from {readable:,} on"


def _lags(
    environment: Environment,
    streams: Collection[str],
    written: Mapping[str, Sequence[int]],
    positions: Sequence[Position],
) -> list[int | None]:
    """Return how many offsets lie behind each position, those of open transactions as well; None where none is known.

    Where only what was rolled back, and the markers of transactions, lie there, nothing does that will be read.
    """
    lags: list[int | None] = []
    for one in positions:
        if one.system != "log" or one.stream not in streams:
            lags.append(None)
            continue
        end = environment.offsets(one.stream, one.partition).end
        lags.append(max([end, *written.get(one.stream, ())[one.partition : one.partition + 1]]) - one.offset)
    if not isinstance(environment, LiveEnvironment):
        return lags
    behind = [(place, one) for place, (one, lag) in enumerate(zip(positions, lags, strict=True)) if lag]
    for stream in sorted({one.stream for _, one in behind}):
        # Together: one by one, each partition would wait for a fetch of its own.
        environment.expect(stream, {one.partition: one.offset for _, one in behind if one.stream == stream})
    for place, one in behind:
        range_now = environment.known(one.stream, one.partition)
        at, whole = one.offset, one.offset + (lags[place] or 0)
        while range_now.start <= at < range_now.end:
            read = environment.read(one.stream, one.partition, at, 1)
            if read is None or read.control is not None:
                break
            at = read.batch.offsets[0] if read.batch.offsets else read.next_offset
            if read.batch.offsets:
                break
        lags[place] = whole - at
    return lags


def _row(position: Position, lag: int | None) -> list[str]:
    # Of a stream between stages the slowest producer counts.
    watermark = max(position.watermark, min(position.producers.values(), default=position.watermark))
    return [
        position.system,
        position.stream,
        str(position.partition),
        f"{position.offset:,}",
        "-" if lag is None else f"{lag:,}",
        watermark_of(watermark),
    ]
