"""The topics of an application's own that bound inputs and outputs need on a cluster in the place of their streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from planner.model.plan import Plan, StreamPlan
from runtime.assembly.bindings import config_of
from runtime.assembly.distinct_places import ANOTHER, is_another
from runtime.ports.connectors import ConnectedSink, PulledSource, PushedSource, TransactionalSink
from runtime.ports.streams import StreamConfig
from runtime.systems.connectors.inbox import inbox_of, notes_of, positions_of
from runtime.systems.connectors.outbox import outbox_of
from runtime.systems.connectors.schemes import connected_at
from runtime.systems.kafka.client.topic import SCHEME, topic_of
from runtime.systems.kafka.needs import BoundTopic


def on_cluster(plan: Plan, bound: Mapping[str, object], bootstrap: str) -> tuple[Plan, dict[str, list[BoundTopic]]]:
    """Return a plan by the names of topics of this cluster that are bound, and what other bound streams need in place.

    Of these it is nothing where a place outside has all of it. A source that is pulled, and a sink that rows are
    delivered to, have a topic of the application's own beside them, and a source that pushes fills the stream itself.
    Raises SamzaError for a URL that says too little.

    >>> from runtime.systems.kafka.client.topic import KafkaTopic
    >>> streams = (StreamPlan(name="in", role="input"), StreamPlan(name="out", role="output", written_by=("end",)))
    >>> bound = {"in": KafkaTopic("kafka://host:9092/orders"), "out": "sqlite:///shop.db?table=totals&key=id"}
    >>> plan, beside = on_cluster(Plan(app="shop", streams=streams), bound, "host:9092")
    >>> [stream.name for stream in plan.streams], [(one.name, one.role) for one in beside["out"]]
    (['orders', 'out'], [('shop.outbox.out...', 'outbox')])
    >>> _, beside = on_cluster(Plan(app="shop", streams=streams), {"in": "sqlite:///shop.db?table=orders"}, "host:9092")
    >>> [one.name for one in beside["in"]]
    ['shop.inbox.in...', 'shop.inbox.in....position']
    """
    names = {stream: name for stream, what in bound.items() if (name := _named(what, bootstrap)) is not None}
    streams = tuple(replace(one, name=names.get(one.name, one.name)) for one in plan.streams)
    elsewhere = [one for one in plan.streams if one.name in bound.keys() - names.keys()]
    return replace(plan, streams=streams), {one.name: [*_beside(plan.app, one, bound[one.name])] for one in elsewhere}


def _named(what: object, bootstrap: str) -> str | None:
    if is_another(what):
        return what.removeprefix(ANOTHER)
    topic = topic_of(what)
    return topic.name if topic is not None and topic.is_at(f"{SCHEME}{bootstrap}") else None


def _beside(app: str, stream: StreamPlan, what: object) -> Iterator[BoundTopic]:
    place = connected_at(what, bool(stream.written_by))
    taken_in = StreamConfig(partitions=stream.partitions or 1)
    if isinstance(place, PulledSource):
        inbox = inbox_of(app, stream.name, place.name)
        yield BoundTopic(inbox, "inbox", taken_in)
        yield BoundTopic(positions_of(inbox), "inbox", StreamConfig(compacted=True))
    elif isinstance(place, PushedSource):
        yield BoundTopic(stream.name, "inbox", taken_in)
        yield BoundTopic(notes_of(stream.name), "inbox", None)
    elif isinstance(place, ConnectedSink) and not isinstance(place, TransactionalSink):
        yield BoundTopic(outbox_of(app, stream.name, place.name), "outbox", config_of(stream, intermediate=True))
