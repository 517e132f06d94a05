"""A record that is larger than where it is to be written takes meets the policy of who writes it, and is named."""

import pytest

from operators.process import ProcessContext
from runtime.model.errors import EnvironmentFault, TooLarge
from samza_dsl import App, Options, String, dead_letter, skip
from tests.kafka.topics import consume, create, produce

LARGE = 5_000
SMALL = {"max.message.bytes": "1000"}


def enlarging(name, on_error=None, **how):
    """Write what is read, and what is to be large that large."""
    app = App(name, Options(commit_interval_ms=100))
    said = {} if on_error is None else {"on_error": on_error}
    words = app.input(f"{name}-in", value=String())
    large = words.map(lambda word: word * LARGE if word == "x" else word)
    large.send_to(app.output(f"{name}-out", value=String(), partitions=1), op_id="written", **said)
    large.send_to(app.output(f"{name}-all", value=String(), partitions=1, **how))
    return app


@pytest.fixture
def at(broker, topics):
    """Where streams are, bound or in the environment; the input is there, and the output takes little."""
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", *((0, None, word) for word in (b"a", b"x", b"b", b"x", b"c")))
    create(broker, f"{topics}-out", **SMALL)
    address = f"kafka://{broker.bootstrap}"

    def at(is_bound):
        streams = [f"{topics}-in", f"{topics}-out"]
        return {"bind": {name: f"{address}/{name}" for name in streams}} if is_bound else {"environment": address}

    return at


def values(broker, topic):
    return [record.value for record in consume(broker, topic)[0]]


@pytest.mark.parametrize("is_bound", [True, False])
def test_it_ends_the_run_which_says_who_has_written_what_where(is_bound, at, broker, topics, tmp_path):
    for _ in range(2):
        with pytest.raises(EnvironmentFault) as told:
            enlarging(topics).run(tmp_path, until_now=True, **at(is_bound))
        said = str(told.value)
        assert "send_to 'written' at " in said and "test_too_large.py:" in said
        assert f"{topics}-out can't be written: a record of 5,0" in said
        assert "larger than the topic's max.message.bytes, 1,000" in said
        assert f"{topics}-in/0" in said and "on_error=" in said
    assert "x" * LARGE not in said
    assert values(broker, f"{topics}-out") == []


@pytest.mark.parametrize("is_bound", [True, False])
def test_its_policy_may_let_it_pass(is_bound, at, broker, topics, tmp_path):
    run = enlarging(topics, skip).run(tmp_path, until_now=True, **at(is_bound))
    assert values(broker, f"{topics}-out") == [b"a", b"b", b"c"]
    assert run.metrics().total("skipped") == 2
    assert len(run.received(f"{topics}-all")) == 3, "a record has all of its effects or none"


@pytest.mark.parametrize("is_bound", [True, False])
def test_it_may_become_a_dead_letter(is_bound, at, broker, topics, tmp_path):
    run = enlarging(topics, dead_letter(f"{topics}-letters")).run(tmp_path, until_now=True, **at(is_bound))
    assert values(broker, f"{topics}-out") == [b"a", b"b", b"c"]
    assert run.received(f"{topics}-letters") == [b"x", b"x"]


def test_what_is_compressed_is_measured_as_it_is_sent(broker, topics, tmp_path):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", (0, None, b"x"))
    create(broker, f"{topics}-out", **SMALL)
    address = f"kafka://{broker.bootstrap}"
    bind = {f"{topics}-in": f"{address}/{topics}-in", f"{topics}-out": f"{address}/{topics}-out?compression=gzip"}
    enlarging(topics).run(tmp_path, until_now=True, bind=bind)
    assert values(broker, f"{topics}-out") == [b"x" * LARGE]


def keeping(value: str, context: ProcessContext) -> list[str]:
    context.state = "x" * (17 << 20)
    return [value]


def test_state_that_is_too_large_names_who_keeps_it(broker, topics, tmp_path):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", (0, b"k", b"x"))
    app = App(topics)
    words = app.input(f"{topics}-in", value=String(), key=String())
    words.process(keeping, op_id="keeper").send_to(app.output(f"{topics}-out", value=String(), partitions=1))
    with pytest.raises(TooLarge, match=r"-keeper-changelog can't be written: .*'keeper' keeps of one key in task 0"):
        app.run(tmp_path, until_now=True, environment=f"kafka://{broker.bootstrap}")


def test_so_does_what_is_too_large_between_stages(broker, topics, tmp_path):
    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", (0, None, b"x"), (0, None, b"y"))
    app = App(topics, Options(commit_by="task"))  # else stages hand on in memory, where nothing is too large
    words = app.input(f"{topics}-in", value=String()).map(lambda word: word * (17 << 20 if word == "x" else 1))
    by = words.partition_by(lambda word: word[0], partitions=1, op_id="by", on_error=skip)
    by.send_to(app.output(f"{topics}-out", value=String(), partitions=1))
    app.run(tmp_path, until_now=True, environment=f"kafka://{broker.bootstrap}")
    assert values(broker, f"{topics}-out") == [b"y"]


def test_an_answer_that_is_too_large_says_that_it_is_remembered(broker, topics, tmp_path):
    async def long(word):
        return [word * (17 << 20)]

    create(broker, f"{topics}-in")
    produce(broker, f"{topics}-in", (0, None, b"x"))
    app = App(topics)
    answered = app.input(f"{topics}-in", value=String()).async_flat_map(long, remember=True, op_id="asking")
    answered.send_to(app.output(f"{topics}-out", value=String(), partitions=1), on_error=skip)
    with pytest.raises(TooLarge, match=r"an answer that 'asking' remembers in task 0, .*or leave remember= out"):
        app.run(tmp_path, until_now=True, environment=f"kafka://{broker.bootstrap}")
