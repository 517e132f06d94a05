"""The runs of some data directories and clusters, as they have noted themselves, and what their environments know."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from planner.model.flow import edges
from planner.model.plan import Plan
from planner.model.virtual_tasks import wrong_factor
from planner.picture.drawing import to_svg
from runtime.encoding.json_text import to_json
from runtime.job.job_model import job_of
from runtime.model.assignment import Scale
from runtime.model.clock import monotonic_ms, wall_clock_ms
from runtime.model.errors import SamzaError
from runtime.opening.rescaling import scalings
from runtime.ports.environment import Environment
from runtime.run.settings import open_environment
from runtime.systems.kafka.client.topic import KafkaCluster
from runtime.systems.log.recovery import DATA_FILE
from samza_dsl.room.letters import Redrive, inputs_of, letters, place_of, send_again
from samza_dsl.room.notes import Event, Notes, Wish, applications, events_of
from samza_dsl.room.ring import RingReader, RingRecord
from samza_dsl.view.readable import time_of, watermark_of

SILENT_MS = 10_000.0
"""The time after which a run is said to be silent: since its last look, and the rest that it said it would have."""
SOON_S = 1.0
"""The time that the first look for applications of an environment is waited for."""
APPS_MS = 10_000.0
"""The interval between two looks for applications in an environment, which may be brokers'."""
MOST_SAMPLES, MOST_EVENTS = 1_000, 500
"""The samples and events of a run that are shown."""
SENT = "sent again"
"""The event of a dead letter that was sent again."""
GONE_WORDS = ("runs", "is stopping")
"""The states in which nobody ends: a run that is in one, and writes no more, was killed."""


class Place(NamedTuple):
    """A data directory, and the cluster that is the environment of the runs there, if it is not the log in it."""

    data: Path
    cluster: KafkaCluster | None = None

    def __str__(self) -> str:
        return str(self.data) if self.cluster is None else f"{self.cluster.address} ({self.data})"


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size that somebody wants of an application."""

    factor: int | None = None
    containers: int | None = None


class NotedRun:
    """The runs of one application in one place, as their notes tell, since somebody looks."""

    def __init__(self, id: str, place: Place, app: str) -> None:
        self.id, self.place, self.app = id, place, app
        self.notes = Notes(place.data, app)
        self._history, self._events = RingReader(self.notes.history), RingReader(self.notes.events)
        self._actions = RingReader(self.notes.actions)
        self._samples: deque[RingRecord] = deque(maxlen=MOST_SAMPLES)
        self._happened: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.sent: dict[str, str] = {}
        """The places of dead letters that were sent again, with when."""
        self._hearing = Lock()

    def look(self) -> dict[str, Any]:
        """Return the last look of the run, with the state that it is in now."""
        content = self.notes.get("look")
        told: dict[str, Any] = {"run": None, "look": None, "at_ms": 0}
        if content is not None:
            with suppress(msgspec.DecodeError):
                told = msgspec.json.decode(content)
        state = "has not been run here" if told["look"] is None else told["look"]["state"]
        age_ms = wall_clock_ms() - told["at_ms"]
        if state in GONE_WORDS and not self.notes.is_alive():
            state = "was killed"
        elif state in GONE_WORDS and age_ms > SILENT_MS + told.get("rest_ms", 0.0):
            state = "is silent"
        return {**told, "id": self.id, "app": self.app, "place": str(self.place), "state": state, "age_ms": age_ms}

    def brief(self) -> dict[str, Any]:
        """Return what a list of runs shows of it."""
        told = self.look()
        found = told.pop("look") or {}
        causes = found.get("causes") or [{"words": ""}]
        names = ("lag", "received_per_s", "behind_ms", "elapsed_ms", "deaths")
        return {**told, **{name: found.get(name) for name in names}, "cause": causes[0]["words"]}

    def plan(self) -> Plan | None:
        """Return the plan of the last run; None where none was noted."""
        content = self.notes.get("plan")
        with suppress(msgspec.DecodeError, ValueError):
            return Plan.from_json(content) if content is not None else None
        return None

    def picture(self) -> str:
        """Return the picture of the plan, whose lines wait for their rates; empty where there is none."""
        plan = self.plan()
        return "" if plan is None else to_svg(plan, dict.fromkeys(edges(plan), "0/s"))

    def samples(self, after: int) -> str:
        """Return the samples of the last hour that are newer than one, as JSON."""
        self._samples.extend(self._history.news())
        newer = [one for one in self._samples if one.number > after]
        return f"[{','.join(f'[{one.number},{one.content.decode()}]' for one in newer)}]"

    def happened(self) -> list[Event]:
        """Return what has happened, the newest last; any thread may ask."""
        with self._hearing:
            return self._happened_since()

    def _happened_since(self) -> list[Event]:
        actions = events_of(self._actions)
        self.sent |= {one.about: time_of(one.at_ms) for one in actions if one.what == SENT}
        new = [*events_of(self._events), *actions]
        if new:
            self._happened = deque(sorted([*self._happened, *new], key=lambda one: one.at_ms), maxlen=MOST_EVENTS)
        return [*self._happened]

    def note(self, what: str, text: str, about: str = "") -> None:
        """Note what was done on a page."""
        self.notes.note_action(Event(at_ms=wall_clock_ms(), what=what, text=text, about=about))

    def close(self) -> None:
        """Let go of the files."""
        for reader in (self._history, self._events, self._actions):
            reader.close()


class NotedRuns:
    """All runs of some places. One thread at a time calls it, but for what asks an environment.

    That is called in the thread of the run's place (`asker`): brokers that hang keep nobody from what runs have noted.
    Invariant: an environment is opened at most once, when something of it is asked for, and closed by `close`.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._known: dict[str, NotedRun] = {}
        self._environments: dict[int, Environment] = {}
        self._askers = [ThreadPoolExecutor(1, "samza-dsl-room-asker") for _ in places]
        self._apps: dict[int, tuple[float, Future[list[str]]]] = {}
        """By place, when the last look for its applications was begun, and that look."""
        self._found: dict[int, list[str]] = {}

    def asker(self, id: str) -> Executor:
        """Return the thread in which the environment of a run is asked; raises SamzaError where there is none."""
        return self._askers[int(self.get(id).id.partition("/")[0])]

    def all(self) -> list[NotedRun]:
        """Return all runs that there are."""
        for number, place in enumerate(self._places):
            for app in dict.fromkeys([*applications(place.data), *self._owned(number)]):
                id = f"{number}/{app}"
                if id not in self._known:
                    self._known[id] = NotedRun(id, place, app)
        return [*self._known.values()]

    def get(self, id: str) -> NotedRun:
        """Return one run; raises SamzaError where there is none."""
        if id not in self._known and id not in {one.id for one in self.all()}:
            raise SamzaError(f"there is no run {id!r} here")
        return self._known[id]

    def environment(self, run: NotedRun) -> Environment:
        """Return the environment of a run; raises SamzaError where there is none, or it can't be opened."""
        number = int(run.id.partition("/")[0])
        found = self._environments.get(number)
        if found is None:
            if run.place.cluster is None and not (run.place.data / DATA_FILE).is_file():
                raise SamzaError(f"there is no log in {run.place.data}: what a run elsewhere has kept is not here")
            found = self._environments[number] = open_environment(run.place.data, run.place.cluster)
        return found

    def letters(self, run: NotedRun) -> dict[str, Any]:
        """Return the dead letters of a run, and the inputs to which they can be sent again."""
        plan = run.plan()
        if plan is None:
            raise SamzaError(f"{run.app} has noted no plan here: its streams of dead letters are not known")
        environment = self.environment(run)
        run.happened()
        known = environment.streams()
        dead = [stream.name for stream in plan.streams if stream.role == "dead_letter"]
        return {
            "streams": dead,
            "elsewhere": [name for name in dead if name not in known],
            "inputs": [name for name in inputs_of(plan) if name in known],
            "letters": letters(environment, plan, run.sent),
        }

    def job(self, run: NotedRun) -> dict[str, Any]:
        """Return the job model of a run, its checkpoints, and the changes of its size."""
        environment = self.environment(run)
        checkpoints = environment.checkpoints(run.app)
        positions = [
            {
                "task": task,
                "stream": one.stream,
                "partition": one.partition,
                "offset": one.offset,
                "watermark": watermark_of(one.watermark),
            }
            for task, found in sorted(checkpoints.items(), key=lambda item: (len(item[0]), item[0]))
            for one in found.positions
        ]
        found = job_of(environment, run.app)
        return {
            "generation": found.generation,
            "model": found.model,
            "options": {} if found.options is None else msgspec.to_builtins(found.options),
            "containers": found.containers,
            "tasks": len(found.tasks),
            "scalings": [{"at": time_of(one.at_ms), **msgspec.to_builtins(one)} for one in scalings(checkpoints)],
            "positions": positions,
        }

    def act(self, run: NotedRun, what: str, said: dict[str, Any]) -> str:
        """Do what was asked for on a page; return it in words. Raises SamzaError for what can't be done."""
        if what in ("commit", "stop"):
            if not run.notes.is_alive():
                raise SamzaError(f"{run.app} does not run here: nobody would hear it")
            run.notes.ask(Wish(what=what, at_ms=wall_clock_ms()))
            told = f"{run.app} is asked to {what}"
            run.note("asked", told)
            return told
        if what == "scale":
            return self._scale(run, said)
        if what == "redrive":
            return self._redrive(run, said)
        raise SamzaError(f"{what!r} is nothing that can be done: commit, stop, scale or redrive")

    def _scale(self, run: NotedRun, said: dict[str, Any]) -> str:
        wanted = msgspec.convert(said, Size)
        factor = wanted.factor
        if factor is not None and (wrong := wrong_factor(factor)):
            raise SamzaError(f"a factor of {wrong}")
        if wanted.containers is not None and wanted.containers < 1:
            raise SamzaError("an application runs in at least one container")
        sizes = [f"split by {factor}"] * bool(factor) + [f"{wanted.containers} containers"] * bool(wanted.containers)
        if not sizes:
            raise SamzaError("a size is to be said: a factor, or a number of containers")
        environment = self.environment(run)
        job = job_of(environment, run.app)
        if (wanted.containers or 1) > 1 and job.is_alone:
            raise SamzaError(
                f"{run.app} runs in one process, without containers: end it, and run it with --containers "
                f"{wanted.containers}"
            )
        environment.ask_scale(run.app, Scale(factor, wanted.containers))
        told = f"{run.app} is asked to have another size: {', '.join(sizes)}"
        run.note("asked", told)
        return told

    def _redrive(self, run: NotedRun, said: dict[str, Any]) -> str:
        plan = run.plan()
        redrive = msgspec.convert(said, Redrive)
        about = place_of(redrive.stream, redrive.partition, redrive.offset)
        run.happened()
        if about in run.sent:
            raise SamzaError(f"it was sent again already, at {run.sent[about]} (UTC)")
        if plan is None:
            raise SamzaError(f"{run.app} has noted no plan here")
        told = send_again(self.environment(run), plan, redrive)
        run.note(SENT, told, about)
        return told

    def _owned(self, number: int) -> list[str]:
        """Return the applications that an environment knows, as of the last look; the first is waited for a while."""
        begun_ms, looking = self._apps.get(number, (float("-inf"), None))
        if (looking is None or looking.done()) and monotonic_ms() - begun_ms >= APPS_MS:
            looking = self._askers[number].submit(self._applications, number)
            self._apps[number] = monotonic_ms(), looking
            if number not in self._found:
                wait([looking], SOON_S)
        return self._found.get(number, [])

    def _applications(self, number: int) -> list[str]:
        """Look for the applications of an environment, in the thread that asks it."""
        place = self._places[number]
        if place.cluster is not None or (place.data / DATA_FILE).is_file():
            with suppress(SamzaError):
                self._found[number] = self.environment(NotedRun(f"{number}/", place, "")).applications()
        return self._found.setdefault(number, [])

    def close(self) -> None:
        """Let go of all files and environments."""
        # First of all: what is asked there reads the files of runs, too.
        for asker in self._askers:
            asker.shutdown(cancel_futures=True)
        for run in self._known.values():
            run.close()
        for environment in self._environments.values():
            environment.close()
        self._known, self._environments = {}, {}


def as_json(value: object) -> str:
    """Return a value as JSON."""
    return to_json(msgspec.to_builtins(value)).decode()


def places_of(data: Sequence[Path], clusters: Sequence[KafkaCluster]) -> Iterator[Place]:
    """Yield the places that are said: each directory by itself, and each cluster with the first directory."""
    if clusters:
        yield from (Place(data[0], cluster) for cluster in clusters)
        yield from map(Place, data[1:])
    else:
        yield from map(Place, data)
