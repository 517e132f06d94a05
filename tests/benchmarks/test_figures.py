"""A file of figures keeps what is not measured again."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import Curve, Measurement, PeerFigure, ProgramFigure, load, merged, save, subject


def point(workload, commit_every=None, ratio=1.0):
    return Measurement(
        workload=workload,
        title="",
        messages=1,
        commit_every=commit_every,
        pairs=1,
        ratio=ratio,
        low=ratio,
        high=ratio,
        cpu_ratio=ratio,
        bar=1.0,
        passed=ratio <= 1.0,
        baseline_s=1.0,
        ours_s=ratio,
    )


def peer(name, workload, variant="", ratio=2.0):
    return PeerFigure(
        peer=name,
        workload=workload,
        title="",
        variant=variant,
        messages=1,
        ratio=ratio,
        low=ratio,
        high=ratio,
        baseline_s=1.0,
        peer_s=ratio,
    )


def program(ratio, workload="", partitions=1):
    return ProgramFigure(
        workload=workload or f"sweep_{ratio}",
        title="",
        mode="memory",
        partitions=partitions,
        messages=1,
        seed=1,
        pairs=1,
        cpu_ratio=ratio,
        low=ratio,
        high=ratio,
        wall_ratio=ratio,
        ours_cpu_s=ratio,
        by_hand_cpu_s=1.0,
        ours_s=ratio,
        by_hand_s=1.0,
    )


ratios = st.floats(0.1, 9.0)
figures = st.lists(
    st.builds(point, st.sampled_from(["B1", "B6"]), st.sampled_from([None, 1_000, 10_000]), ratios)
    | st.builds(peer, st.sampled_from(["one", "other"]), st.sampled_from(["", "B1", "B6"]), st.just(""), ratios)
    | st.builds(program, ratios, st.sampled_from(["words", "fraud"]), st.sampled_from([1, 64]))
    | st.builds(
        lambda name, ratio: Curve(workload=name, title="", ratio=ratio, bar=None, passed=True, curve={}),
        st.sampled_from(["M1", "P1"]),
        ratios,
    ),
    unique_by=subject,
)


@given(figures, figures)
def test_what_is_measured_again_is_replaced_and_the_rest_is_kept(old, new):
    found = merged(old, new)
    assert [one for one in found if one in new] == [one for one in found if subject(one) in set(map(subject, new))]
    assert len(found) == len(set(map(subject, found)))
    assert all(one in found for one in new)
    again = {one.peer for one in new if isinstance(one, PeerFigure)}
    kept = [one for one in old if not (isinstance(one, PeerFigure) and one.peer in again)]
    assert set(map(subject, kept)) <= set(map(subject, found))


@given(figures, figures)
def test_merging_again_changes_nothing(old, new):
    once = merged(old, new)
    assert sorted(merged(once, new), key=subject) == sorted(once, key=subject)


def test_a_peer_that_is_measured_again_loses_what_it_could_do_before():
    old = [peer("one", "B1", "fast"), peer("one", "B6"), peer("other", "B1")]
    assert merged(old, [peer("one", "B1")]) == [peer("one", "B6"), peer("other", "B1"), peer("one", "B1")]
    assert merged(old, [peer("one", "", ratio=None)]) == [peer("other", "B1"), peer("one", "", ratio=None)]
    assert merged([peer("one", "", ratio=None)], [peer("one", "B1")]) == [peer("one", "B1")]


@given(figures)
def test_figures_come_back_from_a_file(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("figures") / "performance.json"
    assert load(path) == []
    save(path, found)
    assert load(path) == found
