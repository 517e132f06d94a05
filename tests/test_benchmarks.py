"""The benchmarks measure what they say: the same results on both sides, and figures of the promised shape."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import QUICK_WITHOUT, WORKLOADS, shapes
from benchmarks.measure import Differs, measure
from benchmarks.shapes import SHAPES
from benchmarks.shapes.appender import latencies
from benchmarks.shapes.long_chain import by_hand, timed
from runtime.commit.commit import Committer

SAMPLE = ("B1", "B3d", "P1", "J2")
"""One of the workloads in memory and on the log, and two of the shapes; any on Kafka begins with a broker."""
FIGURES = {"ratio", "low", "high", "cpu_ratio", "bar", "baseline_s", "ours_s"}


@pytest.mark.ci
@pytest.mark.parametrize("only", [SAMPLE, pytest.param(None, marks=pytest.mark.long)], ids=["sample", "all"])
def test_a_quick_run_writes_its_figures(only, tmp_path):
    written = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(written)]
    command += [] if only is None else ["--only", ",".join(only)]
    shown = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(written.read_text())
    left_out = QUICK_WITHOUT | shapes.QUICK_WITHOUT
    assert [one["workload"] for one in figures] == [
        name for name in only or (*WORKLOADS, *SHAPES) if name not in left_out
    ]
    for one in figures:
        assert one["workload"] in shown.stdout
        if one["workload"] in WORKLOADS:
            check_point(one)
        else:
            assert one["curve"] and all(type(value) is float for value in one["curve"].values())
        if one["bar"] is not None:
            assert one["passed"] is (one["ratio"] <= one["bar"])


def check_point(one):
    description = WORKLOADS[one["workload"]].description
    assert all(type(one[name]) is float and one[name] > 0 for name in FIGURES)
    assert one["ratio_inlined"] is None or one["ratio_inlined"] > 0
    assert one["low"] <= one["ratio"] <= one["high"]
    assert (one["messages"], one["pairs"]) == (description.scaled(description.quick_scale), 1)


ON_SPARK = [name for name, kind in WORKLOADS.items() if kind.description.on_spark]


def tiers():
    """Yield the names of all workloads, with the tier that begins with them."""
    for name, kind in WORKLOADS.items():
        if name in ON_SPARK and ON_SPARK.index(name) % 3:
            yield pytest.param(name, marks=pytest.mark.long)
        elif name in ON_SPARK or kind.description.with_server:
            yield pytest.param(name, marks=pytest.mark.ci)
        else:
            yield name


@pytest.mark.parametrize("name", [*tiers()])
def test_both_sides_come_to_the_same_and_to_something(name, tmp_path):
    description = WORKLOADS[name].description
    workload = WORKLOADS[name](description.scaled(description.quick_scale), tmp_path)
    outcomes = []
    for run in filter(None, (workload.baseline, workload.baseline_inlined, workload.ours)):
        workload.ready()
        outcomes.append(workload.outcome(run()))
    assert outcomes[0] != []
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_no_time_counts_where_results_differ(tmp_path):
    class Wrong(WORKLOADS["B1"]):
        def ours(self):
            return super().ours()[:-1]

    with pytest.raises(Differs, match=r"B1: 6[0-9] results"):
        measure(Wrong(100, tmp_path), 100, 1)


DURABLE = [name for name, kind in WORKLOADS.items() if kind.description.durable]


@pytest.mark.parametrize("name", DURABLE)
@pytest.mark.parametrize("commit_every", [1_000, 10_000])
def test_ours_commits_as_often_as_was_said(name, commit_every, tmp_path, monkeypatch):
    positions = []
    done = Committer.done

    def noted(self, commit, tasks):
        told = done(self, commit, tasks)
        offsets = [place.offset for checkpoint in commit.checkpoints.values() for place in checkpoint.positions]
        positions.append(max(offsets, default=0))
        return told

    monkeypatch.setattr(Committer, "done", noted)
    workload = WORKLOADS[name](4 * commit_every, tmp_path, commit_every)
    workload.ready()
    workload.ours()
    assert len(positions) in (4, 5)  # the end of a stream may be committed by itself
    assert all(abs(at - commit_every * number) <= commit_every / 10 for number, at in enumerate(positions[:4], 1))


@pytest.mark.ci
def test_the_memory_of_a_side_is_measured():
    command = [sys.executable, "-m", "benchmarks.measure", "B1", "--scale", "0.003", "--memory", "ours"]
    shown = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) is None or json.loads(shown.stdout) >= 0


@pytest.mark.ci
def test_memory_is_the_growth_while_something_was_done():
    # in a process of its own, where no earlier test has left memory to use again
    program = 'from benchmarks.memory import growth_mib; print(growth_mib(lambda: bytearray(b"x") * (64 << 20)) or 64)'
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert float(shown.stdout) > 32


def test_latency_lasts_from_the_append_to_the_commit_that_covers_it():
    appended = [(10, 1.0), (20, 2.0)]
    committed = [(4, 1.5), (20, 2.25), (21, 9.0)]
    assert latencies(appended, committed) == [(250.0, 10), (500.0, 4), (1_250.0, 6)]


def test_a_shape_is_not_measured_where_a_chain_comes_to_something_else():
    assert timed(by_hand(3), [1, 2], 3) > 0
    with pytest.raises(AssertionError, match="a chain of 4 did not"):
        timed(by_hand(3), [1, 2], 4)
