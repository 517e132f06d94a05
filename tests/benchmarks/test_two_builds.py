"""Two builds are measured in turn, each with its own code."""

import pytest

from benchmarks.two_builds import ROOT, build_of, change


@pytest.mark.ci
def test_a_build_is_measured_beside_that_of_a_commit_with_the_code_of_each():
    with build_of("HEAD") as build:
        assert (build / "benchmarks" / "two_builds.py").exists() and build != ROOT
        found = change("B1", build, 0.001, 2)
        assert 0 < found.low <= found.ratio <= found.high
        (build / "benchmarks" / "stateless_chain.py").write_text("raise RuntimeError")
        with pytest.raises(Exception, match="non-zero exit status"):
            change("B1", build, 0.001, 1)
    assert not build.exists()


def test_a_commit_that_is_not_there_is_said():
    with pytest.raises(ValueError, match="nothere can't be checked out beside this build"), build_of("nothere"):
        pass
