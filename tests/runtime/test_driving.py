"""A run is begun anew where that helps: when brokers did not answer in time, and not for ever."""

import pytest

from runtime.model.errors import EnvironmentFault, Fenced, Grown, Repartitioned, Unavailable
from runtime.model.metrics import RunMetrics
from runtime.run import driver as driving
from runtime.run.driver import MOST_FAILURES, run_whatever_begins, run_whatever_fails
from runtime.run.settings import RunSettings


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(driving, "PAUSE_MS", 0.0)
    monkeypatch.setattr(driving, "GROWN_MS", 0.0)


class Run:
    """A run that ends as it is told to, after so many commits."""

    def __init__(self, end: Exception | None, commits: int = 0, stopping: bool = False) -> None:
        self.end, self.commits, self.stopping = end, commits, stopping

    def metrics(self, stores: bool = True) -> RunMetrics:
        return RunMetrics(commits=self.commits)

    def stop(self) -> None:
        """Do nothing."""

    async def drive(self) -> None:
        if self.end is not None:
            raise self.end


def run(*ends, how=None, driven=run_whatever_fails):
    """Make a run of each of these in turn, an error where it can't be made; return the last, and how each was made."""
    left, said = [*ends], []

    def make(settings, fenced=None):
        said.append((settings.from_start, settings.state, settings.until_now, fenced))
        end = left.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    return driven(make, None, RunSettings(**how or {})), said


GONE = Unavailable("no answer")
SET_BACK = {"from_start": True, "state": "reset", "until_now": True}


def test_it_goes_on_from_its_checkpoint_and_is_not_set_back_again():
    last = Run(None)
    found, said = run(Run(GONE, commits=2), GONE, Run(GONE), last, how=SET_BACK)
    assert found is last
    assert said == [(True, "reset", True, None)] + [(False, None, True, None)] * 3


def test_where_nothing_comes_of_it_time_and_again_it_ends():
    with pytest.raises(Unavailable):
        run(*[Run(GONE)] * (MOST_FAILURES + 1))
    last = Run(None)
    again = [Run(GONE)] * MOST_FAILURES
    assert run(*again, last)[0] is last
    assert run(*again[1:], Run(GONE, commits=1), *again[1:], last)[0] is last, "who commits may fail as often anew"


def test_what_is_more_than_that_is_told_at_once():
    for ends in ([GONE], [Run(EnvironmentFault("a record is too large"))], [Run(GONE, commits=1, stopping=True)]):
        with pytest.raises(EnvironmentFault):
            run(*ends, Run(None))


def test_it_takes_up_more_partitions_as_well():
    last = Run(None)
    assert run(Run(Grown("3 partitions")), Run(GONE), last)[0] is last


@pytest.mark.parametrize("kind", [Grown, Repartitioned])
def test_one_that_was_asked_to_stop_is_not_begun_anew_for_more_partitions(kind):
    """What is begun anew knows nothing of the stop: a service that is told to end would go on."""
    stopped = Run(kind("3 partitions"), stopping=True)
    assert run(stopped, Run(None))[0] is stopped
    again = Run(kind("4 partitions"), stopping=True)
    assert run(Run(kind("3 partitions")), again, Run(None))[0] is again


OUTRUN = Fenced("another one has taken over")


def test_who_is_outrun_joins_the_newer_run_again_and_again():
    last, begins = Run(None), {"driven": run_whatever_begins}
    found, said = run(OUTRUN, Run(OUTRUN), Run(OUTRUN), last, how=SET_BACK, **begins)
    assert found is last
    joining = (False, None, True, OUTRUN)
    assert said == [(True, "reset", True, None), joining, joining, joining]


def test_where_there_is_no_newer_run_or_an_end_was_asked_for_that_is_told():
    for ends in ([Run(OUTRUN), OUTRUN], [Run(OUTRUN, stopping=True)]):
        with pytest.raises(Fenced):
            run(*ends, Run(None), driven=run_whatever_begins)
