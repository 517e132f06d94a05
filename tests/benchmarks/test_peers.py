"""Other libraries are measured side by side, or their row says why not; no network is needed here."""

import ast
import json
import os
import re
import select
import sys
from contextlib import suppress

import msgspec
import pytest

from benchmarks import WORKLOADS
from benchmarks.figures import PeerFigure
from benchmarks.measure import Differs
from benchmarks.peers import PEERS, Peer, environment, measure, side_by_side
from benchmarks.peers.case import Case, by_key, emitted, final_counts, none_late, panes_on_time
from benchmarks.running import Timed
from tests.source import ROOT, tree

MODULES = ROOT / "benchmarks" / "peers"


def case_names(peer):
    """Return what a peer's module says that it can do, without importing the peer."""
    module = tree(MODULES / f"{peer.module}.py")
    (said,) = (
        node.value for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES"
    )
    return [ast.literal_eval(key) for key in said.keys]


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_a_peer_runs_workloads_that_there_are_in_pinned_versions(peer):
    found = {name.partition(" ")[0] for name in case_names(peer)}
    assert found and found <= WORKLOADS.keys()
    assert peer.cannot.keys() <= WORKLOADS.keys() - found and all(peer.cannot.values())
    assert all("==" in requirement for requirement in peer.requirements)
    assert re.fullmatch(r"\d+(\.\d+)+", peer.version)


@pytest.mark.parametrize("peer", [peer for peer in PEERS.values() if peer.sources], ids=lambda peer: peer.name)
def test_a_peer_that_is_not_pythons_has_its_sources_here(peer):
    pom = (MODULES / peer.sources / "pom.xml").read_text()
    assert f">{peer.version}<" in pom
    assert list((MODULES / peer.sources).glob("*.java"))


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.mark.ci
@pytest.mark.usefixtures("elsewhere")
def test_a_peer_that_cannot_be_installed_has_a_row_with_pips_reason():
    peer = Peer("nobody", "nothing", ("no-such-library==1.0",))
    (row,) = side_by_side.measured(peer, ["B1"], 1, None)
    assert (row.peer, row.version, row.workload, row.ratio) == ("nobody", "1.0", "", None)
    assert row.missing.startswith(
        "not installed: Could not find a version that satisfies the requirement no-such-libra"
    )


@pytest.mark.usefixtures("elsewhere")
def test_a_peer_whose_programs_are_not_here_is_not_installed():
    (row,) = side_by_side.measured(Peer("nobody", "nothing", ("it==1.0",), ("no-such-program",)), ["B1"], 1, None)
    assert row.missing == "not installed: it needs no-such-program, which is not here"
    assert not environment.cache().exists()


@pytest.fixture
def answers(monkeypatch):
    """Answer in the place of the measuring process: by case, or by "" for what there is."""
    found = {}

    def output(command, seconds):
        case = command[command.index("--case") + 1] if "--case" in command else ""
        answer = found[case]
        if isinstance(answer, Exception):
            raise answer
        return "what a library prints\n" + json.dumps(12.5 if "--memory" in command else msgspec.to_builtins(answer))

    monkeypatch.setattr(side_by_side, "ready", lambda peer: "python")
    monkeypatch.setattr(side_by_side, "output", output)
    return found


def test_a_case_that_fails_has_a_row_and_the_others_are_measured(answers):
    answers[""] = [measure.Described(name, 1_000, 3) for name in ("B1", "B1 slow", "B2")]
    answers["B1"] = environment.Unavailable("boom")
    answers["B1 slow"] = PeerFigure(peer="bytewax", workload="B1", title="", variant="slow", ratio=2.0)
    failed, slow = side_by_side.measured(PEERS["bytewax"], ["B1"], 1, None)
    assert (failed.workload, failed.ratio, failed.missing) == ("B1", None, "failed: boom")
    assert (slow.variant, slow.ratio, slow.peer_mib) == ("slow", 2.0, 12.5)


def test_a_workload_that_a_peer_cannot_run_has_a_row(answers):
    answers[""] = []
    (row,) = side_by_side.measured(PEERS["apache-samza"], ["B1", "B2"], 1, None)
    assert (row.workload, row.ratio, row.missing) == ("B2", None, "its windows are of processing time")


def test_a_peer_that_cannot_be_imported_has_a_row(answers):
    answers[""] = environment.Unavailable("ImportError: no such symbol")
    (row,) = side_by_side.measured(PEERS["bytewax"], ["B1"], 1, None)
    assert row.missing == "not installed: ImportError: no such symbol"


@pytest.fixture
def twin(monkeypatch):
    """Put a peer there that runs the hand loop, and one that loses a result."""
    found = {
        "B1 right": Case(lambda workload: workload.baseline(), 100, "it is the hand loop"),
        "B1 wrong": Case(lambda workload: workload.baseline()[1:], 100),
        "B1 apart": Case(lambda workload: Timed(10.0, workload.baseline()), 100),
    }
    monkeypatch.setattr(measure, "cases", lambda peer: found)
    monkeypatch.setitem(measure.PEERS, "twin", Peer("twin", "nothing", ("twin==2.0",)))


@pytest.mark.usefixtures("twin")
def test_a_case_is_measured_over_the_hand_loop(tmp_path):
    assert [case.name for case in measure.described("twin")] == ["B1 right", "B1 wrong", "B1 apart"]
    found = measure.figure("twin", "B1 right", 100, 2, tmp_path)
    assert (found.workload, found.variant, found.messages, found.pairs) == ("B1", "right", 100, 2)
    assert 0 < found.low <= found.ratio <= found.high
    assert found.note == "it is the hand loop" and found.version == "2.0"
    assert measure.memory("twin", "B1 right", 100, tmp_path) in (None, pytest.approx(0, abs=1_000))


@pytest.mark.usefixtures("twin")
def test_no_time_counts_where_a_peers_results_differ(tmp_path):
    with pytest.raises(Differs, match=r"B1: 6[0-9] results"):
        measure.figure("twin", "B1 wrong", 100, 1, tmp_path)


@pytest.mark.usefixtures("twin")
def test_a_case_in_another_process_tells_its_own_time(tmp_path):
    assert measure.figure("twin", "B1 apart", 100, 1, tmp_path).peer_s == 10.0


def test_a_program_says_why_it_failed():
    with pytest.raises(environment.Unavailable, match="NameError: name 'nothing' is not defined"):
        environment.output([sys.executable, "-c", "nothing"], 60)
    assert environment.output([sys.executable, "-c", "print(1)"], 60) == "1\n"


@pytest.mark.ci
def test_a_program_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    program = (
        "import signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "signal.pause()"
    )
    with pytest.raises(environment.Unavailable, match="it took longer than 2 s"):
        environment.output([sys.executable, "-c", program], 2)
    with suppress(ProcessLookupError):
        child = os.pidfd_open(int((tmp_path / "child").read_text()))
        ended, _, _ = select.select([child], [], [], 60)
        os.close(child)
        assert ended


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("noise\nERROR: No wheel for this Python\nERROR: the rest", "No wheel for this Python"),
        ("[ERROR] no such artifact\n[ERROR] more", "no such artifact"),
        ("Traceback\n  a line\nValueError: no\n\n", "ValueError: no"),
        ("Traceback\nmodule.CustomError: no\nOccurred here:\n  a line", "module.CustomError: no"),
        ("Traceback\nbenchmarks.measure.Differs: B1: 1 results", "B1: 1 results"),
        ("", ""),
    ],
)
def test_the_reason_is_one_line(errors, reason):
    assert environment.reason(errors) == reason


def test_none_late_differs_from_the_hand_loop_by_the_late_alone(tmp_path):
    workload = WORKLOADS["B2"](60_000, tmp_path)
    by_hand = workload.outcome(workload.baseline())
    assert panes_on_time(none_late(workload, by_hand)) == panes_on_time(by_hand) == by_hand != none_late(workload, [])
    workload.messages = [message for message in workload.messages if message["id"] % 1_000 != 999]
    assert none_late(workload, []) == workload.outcome(workload.baseline())


def test_outcomes_are_compared_as_a_peer_means_them(tmp_path):
    counts = [("b", 1), ("a", 1), ("b", 2)]
    assert by_key(None, counts) == [("a", 1), ("b", 1), ("b", 2)]
    assert final_counts(None, counts) == [("a", 1), ("b", 2)]
    workload = WORKLOADS["B3"](2, tmp_path)
    assert emitted(workload, counts) == counts[:2]
