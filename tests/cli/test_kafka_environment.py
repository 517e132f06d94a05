"""The commands on streams, checkpoints and applications, on a cluster as on a data directory."""

import json
import signal

import pytest

from tests.cli.conftest import SPENDING
from tests.kafka.topics import consume, create, grow, names, produce

ORDERS = [{"customer": name, "amount": 1, "at_ms": at} for at, name in enumerate(["ann", "bob", "ann", "cy"])]
pytestmark = pytest.mark.ci


@pytest.fixture
def on_kafka(call, broker, topics):
    """Call a command on a cluster, all names with the prefix of this test."""

    def on_kafka(*arguments: str, code: int = 0, **how):
        result = call(*arguments, "--environment", f"kafka://{broker.bootstrap}", **how)
        assert result.exit_code == code, result.output + result.stderr
        return (result.stdout if code == 0 else result.stderr).replace(f"{topics}-", "")

    return on_kafka


@pytest.fixture
def ran(on_kafka, write, topics):
    """An application has read a topic, and has a window open; return its name."""
    program = SPENDING.replace('"orders"', f'"{topics}-orders"').replace('"spent"', f'"{topics}-spent"')
    write("spending.py", program.replace('App("spending")', f'App("{topics}-spending")'))
    lines = "".join(json.dumps(order) + "\n" for order in ORDERS)
    on_kafka("streams", "produce", f"{topics}-orders", "--partitions", "2", stdin=lines)
    on_kafka("run", "spending.py", "--until-now")
    return f"{topics}-spending"


def listed(on_kafka, topics) -> dict[str, list[str]]:
    """Return what is told of each stream of this test, in a list of all."""
    rows = [line.split() for line in on_kafka("streams", "list").splitlines()]
    return {name: rest for name, *rest in rows}


def positions(on_kafka, app) -> dict[tuple[str, int], int]:
    rows = [line.split() for line in on_kafka("checkpoint", "show", app).splitlines()[3:]]
    return {(row[2], int(row[3])): int(row[4]) for row in rows}


def shown(on_kafka, stream) -> list[str]:
    return sorted(line.split()[-1] for line in on_kafka("streams", "show", stream).splitlines()[1:])


def test_topics_are_written_listed_shown_described_and_deleted(on_kafka, broker, topics, folder):
    name = f"{topics}-numbers"
    kept = ["--retention-ms", "3600000"]
    assert on_kafka("streams", "produce", name, *kept, stdin="1\n2\n3\n") == "wrote 3 records to numbers\n"
    assert [record.value for record in consume(broker, name)[0]] == [b"1", b"2", b"3"]
    assert listed(on_kafka, topics)["numbers"] == ["1", "4"], "three records, and the marker of a transaction"
    assert shown(on_kafka, name) == ["1", "2", "3"]
    assert on_kafka("streams", "tail", name, "-n", "1").splitlines()[1].split()[-1] == "3"
    described = on_kafka("streams", "describe", name)
    assert "retention    3,600,000 ms\n" in described
    assert described.splitlines()[-1].split() == ["0", "0", "4", "open"]
    assert on_kafka("streams", "end", name) == "numbers has ended\n"
    assert on_kafka("streams", "describe", name).splitlines()[-1].split()[-1] == "ended"
    assert on_kafka("streams", "archive", name, "history") == "archived 3 records of numbers to history, which has 3\n"
    assert on_kafka("streams", "delete", name) == "deleted numbers: 1 partition\n"
    assert "numbers" not in listed(on_kafka, topics)
    assert "there is no stream 'numbers' in kafka://" in on_kafka("streams", "show", name, code=2)
    assert [path.name for path in folder.iterdir()] == ["history"], "no data directory is made"


def test_a_topic_of_others_is_described_as_it_is(on_kafka, broker, topics):
    create(broker, f"{topics}-table", 2, **{"cleanup.policy": "compact", "retention.ms": "60000"})
    create(broker, f"{topics}-short", 1, **{"retention.ms": "60000", "retention.bytes": "5000000"})
    produce(broker, f"{topics}-short", (0, b"k", b"v"))
    table = on_kafka("streams", "describe", f"{topics}-table")
    assert "compacted    yes" in table
    assert "retention    keeps everything\n" in table
    assert "retention    60,000 ms, 5,000,000 bytes\n" in on_kafka("streams", "describe", f"{topics}-short")
    assert on_kafka("streams", "show", f"{topics}-short").splitlines()[1].split()[-2:] == ["k", "v"]


def test_what_is_written_meanwhile_is_followed(program, broker, topics):
    create(broker, f"{topics}-words")
    tail = ["streams", "tail", f"{topics}-words", "-f", "-n", "5"]
    process = program(*tail, "--environment", f"kafka://{broker.bootstrap}")
    for word in (b"one", b"two"):
        produce(broker, f"{topics}-words", (0, None, word), transaction=f"{topics}-writer")
        assert process.stdout.readline().split()[-1] == word.decode()


def test_what_is_written_to_partitions_that_are_added_is_followed(program, broker, topics):
    create(broker, f"{topics}-words", 2)
    produce(broker, f"{topics}-words", (1, None, b"one"))
    process = program("streams", "tail", f"{topics}-words", "-f", "--environment", f"kafka://{broker.bootstrap}")
    assert process.stdout.readline().split()[-1] == "one"
    grow(broker, f"{topics}-words", 4)
    produce(broker, f"{topics}-words", (3, None, b"two"))
    assert process.stdout.readline().split()[-1] == "two"


def test_partitions_that_others_add_are_behind_until_they_are_read(on_kafka, ran, broker, topics):
    grow(broker, f"{topics}-orders", 4)
    produce(broker, f"{topics}-orders", (3, None, json.dumps(ORDERS[0]).encode()))
    rows = [line.split()[:6] for line in on_kafka("checkpoint", "show", ran).splitlines()[3:]]
    assert [[row[0], *row[3:]] for row in rows if row[2] == "orders"][2:] == [
        ["-", "2", "0", "0"],
        ["-", "3", "0", "1"],
    ]


def test_an_application_is_moved_with_its_state_kept_or_dropped(on_kafka, ran, topics):
    before = positions(on_kafka, ran)
    assert {stream for stream, _ in before} == {"orders", "spending-by-customer"}
    assert "must say what becomes of it" in on_kafka("checkpoint", "set", ran, f"{topics}-orders", "0", code=2)
    on_kafka("checkpoint", "set", ran, f"{topics}-orders:0", "earliest", "--state", "keep")
    assert positions(on_kafka, ran) == before | {("orders", 0): 0}
    on_kafka("checkpoint", "set", "spending.py", f"{topics}-orders", "earliest", "--state", "reset")
    assert positions(on_kafka, ran) == {("orders", 0): 0, ("orders", 1): 0}
    assert "spending-by-customer" not in listed(on_kafka, topics)
    on_kafka("streams", "end", f"{topics}-orders")
    on_kafka("run", "spending.py", "--until-now")
    spent = [json.loads(one) for one in shown(on_kafka, f"{topics}-spent")]
    assert {one["key"]: one["value"] for one in spent} == {"ann": 2, "bob": 1, "cy": 1}


def test_a_reset_begins_anew(on_kafka, ran, topics):
    assert on_kafka("reset", ran, "--yes") == "spending begins anew; dropped spending-by-customer\n"
    assert positions(on_kafka, ran) == {}
    assert listed(on_kafka, topics).keys() & {"orders", "spent", "spending-by-customer"} == {"orders", "spent"}
    assert "no application 'spendnig' has run on kafka://" in on_kafka("reset", f"{topics}-spendnig", "--yes", code=2)


def test_what_a_deleted_application_has_kept_is_collected(on_kafka, ran, topics, folder, broker):
    state = folder / ".samza-dsl" / "state" / ran
    assert "nothing to remove" in on_kafka("gc")
    assert on_kafka("delete", ran, "--yes").startswith("spending is deleted")
    on_kafka("run", "spending.py", "--until-now")
    assert "nothing to remove" in on_kafka("gc"), "it was run again"
    on_kafka("delete", ran, "--yes")
    assert state.exists()
    assert on_kafka("gc") == "removed what spending had kept\n"
    assert "nothing to remove" in on_kafka("gc")
    assert not state.exists()
    assert listed(on_kafka, topics).keys() & {"orders", "spent", "spending-by-customer"} == {"orders", "spent"}
    assert {name for name in names(broker) if name.startswith(ran)} == {f"{ran}-checkpoints"}
    on_kafka("streams", "end", f"{topics}-orders")
    on_kafka("run", "spending.py")
    spent = [json.loads(one) for one in shown(on_kafka, f"{topics}-spent")]
    assert sorted((one["key"], one["value"]) for one in spent) == [("ann", 2), ("bob", 1), ("cy", 1)]


@pytest.fixture
def shop(on_kafka, write, topics):
    """Return what writes an application that counts by shop under some ids, and what sells in shops."""

    def version(*ids):
        lines = [
            "from samza_dsl import App",
            f"app = App('{topics}-shop')",
            f"sales = app.input('{topics}-sales', value=dict)",
            "sales = sales.partition_by(lambda r: r['shop'], partitions=2, op_id='by')",
        ]
        for id in ids:
            counts = f"sales.scan(lambda n, r: n + 1, init=int, emit=lambda k, n: [k, n], op_id='{id}')"
            lines.append(f"{counts}.send_to(app.output('{topics}-{id}', value=list))")
        write("app.py", "\n".join(lines))

    def sell(shops):
        lines = "".join(json.dumps({"shop": shop}) + "\n" for shop in shops)
        on_kafka("streams", "produce", f"{topics}-sales", stdin=lines)

    return version, sell


def test_the_state_of_one_operator_is_listed_moved_and_dropped(on_kafka, write, topics, folder, shop):
    version, sell = shop

    def listed():
        return {line.split()[0]: line.split()[1:5] for line in on_kafka("state", "list", f"{topics}-shop").splitlines()}

    there = ("--data", str(folder / "there"))
    version("old", "gone", "left")
    sell("aabc")
    on_kafka("run", "app.py", "--until-now")
    found = listed()
    assert {found[id][0] for id in ("old", "gone", "left")} == {"3"}
    assert found["by"][3] == "0"
    version("new", "left")
    sell("a")
    told = on_kafka("run", "app.py", "--until-now", code=1)
    assert "state forget shop gone old --environment kafka://" in told
    assert "state move" in told
    assert on_kafka("state", "move", "app.py", "old", "new", *there).endswith("the state of 'old' to 'new'\n")
    exported = on_kafka("state", "export", "app.py", "new")
    entries = {row["key"]: row["value"] for row in map(json.loads, exported.splitlines())}
    assert entries == {"a": 2, "b": 1, "c": 1}
    write("conversions.py", "def less(entry):\n    return entry.of(entry.value - 1) if entry.value > 1 else None\n")
    converted = on_kafka("state", "convert", "app.py", "new", "conversions:less", "--yes")
    assert converted.endswith("converted 3 entries of 'new', 2 of which are dropped\n")
    assert [json.loads(line)["value"] for line in on_kafka("state", "get", "app.py", "new", "a").splitlines()] == [1]
    imported = on_kafka("state", "import", "app.py", "--yes", stdin=exported.replace('"task":0', '"task":1'))
    assert imported.endswith("3 entries of 'new'\n")
    assert on_kafka("state", "export", "app.py", "new") == exported
    assert on_kafka("state", "forget", "app.py", "gone", "--yes", *there) == "shop has dropped 3 keys of 'gone'\n"
    on_kafka("run", "app.py", "--until-now")
    assert shown(on_kafka, f"{topics}-new") == ['["a",3]']
    assert shown(on_kafka, f"{topics}-left")[-3:] == ['["a",3]', '["b",1]', '["c",1]']
    assert listed().keys() == {"operator", "by", "new", "left"}
    version("newest", "left")
    assert "moves the state of 'new' to 'newest'" in on_kafka("evolve", "app.py", "--apply", "--yes")
    version("new", "left")
    on_kafka("state", "move", "app.py", "newest", "new")
    sell("z")
    on_kafka("drain", "app.py")
    assert '["z",1]' not in shown(on_kafka, f"{topics}-new")
    on_kafka("run", "app.py", "--until-now")
    assert '["z",1]' in shown(on_kafka, f"{topics}-new")
    version("new", "left", "gone")
    sell("b")
    on_kafka("run", "app.py", "--until-now", *there)
    assert shown(on_kafka, f"{topics}-gone")[-2:] == ['["b",1]', '["c",1]']
    assert '["b",2]' in shown(on_kafka, f"{topics}-new")


def test_what_is_added_is_computed_from_topics(on_kafka, topics, shop):
    version, sell = shop
    version("old")
    sell("aabc")
    on_kafka("run", "app.py", "--until-now")
    version("old", "new")
    assert "computes 'new' from history" in on_kafka("evolve", "app.py", "--apply", "--yes")
    assert not [word for word in on_kafka("streams", "list").split() if "backfilling" in word]
    sell("ab")
    on_kafka("run", "app.py", "--until-now")
    assert sorted(shown(on_kafka, f"{topics}-new")) == ['["a",3]', '["b",2]']
    assert {'["a",3]', '["b",2]'} < set(shown(on_kafka, f"{topics}-old"))


def test_a_fork_goes_on_beside_the_live_run_in_topics_of_its_own(
    on_kafka, write, folder, topics, shop, program, broker
):
    version, sell = shop
    version("old")
    sell("aabc")
    write("live.py", (folder / "app.py").read_text())
    running = program("run", "live.py", "--environment", f"kafka://{broker.bootstrap}")
    while "running" not in running.stdout.readline():
        pass

    def written(count):
        while len(found := shown(on_kafka, f"{topics}-old")) < count:
            pass
        return found

    written(4)
    version("old", "new")
    fork = ("fork", "live.py", "app.py", "--as", "trial", "--until-now")
    told = on_kafka(*fork)
    assert "shop.trial is forked from shop at now" in told
    assert "shop.trial computes 'new' from history (" in told
    assert "compare: samza-dsl diff old trial-old --environment kafka://" in told
    sell("ab")
    written(6)
    on_kafka(*fork)
    trial = f"trial-{topics}-old"
    assert on_kafka("diff", f"{topics}-old", trial) == "2 in both, 0 in old alone, 0 in trial-old alone\n"
    assert shown(on_kafka, trial) == ['["a",3]', '["b",2]'] == shown(on_kafka, f"trial-{topics}-new")
    assert running.poll() is None
    for stream in (trial, f"trial-{topics}-new"):
        on_kafka("streams", "delete", stream)


def test_a_fork_has_what_lay_between_stages(on_kafka, write, folder, topics, shop):
    version, sell = shop
    version("old")
    # Else stages hand on in memory, and nothing lies between them.
    well = (folder / "app.py").read_text().replace("-shop'", "-shop', Options(commit_by='task')")
    well = well.replace("import App", "import App, Options")
    write("app.py", well)
    sell("aa")
    on_kafka("run", "app.py", "--until-now")
    write("app.py", well.replace("n + 1", "n + (1 if r['shop'] < 'x' else 1 / 0)"))
    sell("abxyabab")
    on_kafka("run", "app.py", "--until-now", code=1)
    write("app.py", well)
    unread = on_kafka("state", "list", "app.py").splitlines()
    assert int(next(line.split()[4] for line in unread if line.startswith("by "))) > 0
    fork = ("fork", "app.py", "app.py", "--as", "trial", "--until-now")
    on_kafka(*fork)
    on_kafka("run", "app.py", "--until-now")
    sell("abxy")
    on_kafka("run", "app.py", "--until-now")
    on_kafka(*fork)
    trial = f"trial-{topics}-old"
    assert on_kafka("diff", f"{topics}-old", trial).endswith(" in both, 0 in old alone, 0 in trial-old alone\n")
    assert '["x",2]' in shown(on_kafka, trial)
    # From another cut, which is computed from history: behind both records that were sold first.
    on_kafka(*("fork", "app.py", "app.py", "--as", "past", "--until-now", "--at", "2"))
    told = on_kafka("diff", f"{topics}-old", f"past-{topics}-old")
    assert told.endswith(" in both, 0 in old alone, 0 in past-old alone\n") and not told.startswith("0 in both")
    for name in ("trial", "past"):
        on_kafka("streams", "delete", f"{name}-{topics}-old")


def test_containers_that_live_are_neither_moved_nor_reset_nor_deleted(on_kafka, ran, broker, topics, program):
    where = ["--environment", f"kafka://{broker.bootstrap}", "--containers", "2"]
    process = program("run", "spending.py", *where)
    while "running" not in process.stdout.readline():
        pass
    produce(broker, f"{topics}-orders", (0, None, json.dumps(ORDERS[0]).encode()))
    before = positions(on_kafka, ran)
    while positions(on_kafka, ran) == before:
        pass
    for command in (["reset", ran, "--yes"], ["delete", ran, "--yes"], ["state", "forget", ran, "by", "--yes"]):
        assert "Containers of application 'spending' live" in on_kafka(*command, code=1)
    told = on_kafka("checkpoint", "set", ran, f"{topics}-orders", "0", "--state", "keep", code=1)
    assert "live on kafka://" in told


def test_options_for_kafka_need_a_cluster(call):
    result = call("streams", "list", "--kafka-options", "kafka.toml")
    assert (result.exit_code, "add --environment kafka://HOST:PORT" in result.stderr) == (2, True)


def test_event_time_is_set_back_after_a_record_of_a_clock_that_was_ahead(on_kafka, ran, topics):
    ahead = [{"customer": "eve", "amount": 1, "at_ms": 3 * 86_400_000}] * 2
    more = [{"customer": name, "amount": 5, "at_ms": at} for name, at in (("dan", 21_000), ("fay", 31_000))]
    for found in (ahead, more):
        if found is more:
            told = on_kafka("checkpoint", "set", ran, "--watermark", "1970-01-01 00:00:20")
            assert told.count("event time is set back from 1970-01-04 00:00:00 to 1970-01-01 00:00:20") == 2
        for part in found:
            on_kafka("streams", "produce", f"{topics}-orders", stdin=f"{json.dumps(part)}\n" * 2)
        on_kafka("run", "spending.py", "--until-now")
    assert '{"key":"dan","start":20000,"end":30000,"value":10}' in shown(on_kafka, f"{topics}-spent")


@pytest.mark.parametrize(
    ("containers", "how"),
    [(1, ("--on", "spark", "--master", "local[1]")), pytest.param(1, (), marks=pytest.mark.long), (2, ())],
)
def test_history_is_computed_beside_a_run_that_goes_on(
    on_kafka, broker, topics, shop, write, folder, program, containers, how
):
    version, sell = shop
    where = ("--environment", f"kafka://{broker.bootstrap}")
    version("old")
    sell("aabc")
    write("live.py", (folder / "app.py").read_text())
    running = program("run", "live.py", "--containers", str(containers), *where)
    while "running" not in running.stdout.readline():
        pass

    def written(stream, count):
        while len(found := shown(on_kafka, f"{topics}-{stream}")) < count:
            pass
        return found

    written("old", 4)
    version("old", "new")
    evolving = program("evolve", "app.py", "--apply", "--yes", *how, *where)
    while "it joins where the run ends" not in (told := evolving.stdout.readline()):
        assert told, evolving.communicate()
    sell("ab")
    written("old", 6)
    assert running.poll() is None, "the run goes on"
    running.send_signal(signal.SIGINT)
    assert running.wait() == 0 and evolving.wait() == 0
    assert not [word for word in on_kafka("streams", "list").split() if "backfilling" in word]
    sell("ac")
    on_kafka("run", "app.py", "--until-now")
    assert written("new", 2) == ['["a",4]', '["c",2]']
    assert written("old", 8) == ['["a",1]', '["a",2]', '["a",3]', '["a",4]', '["b",1]', '["b",2]', '["c",1]', '["c",2]']


def test_a_certificate_that_is_not_there_is_a_mistake(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kafka.toml").write_text('security_protocol = "SSL"\nssl_cafile = "no-such.pem"\n')
    result = call("streams", "list", "--environment", "kafka://host:9092", "--kafka-options", "kafka.toml")
    assert result.exit_code == 2 and "ssl_cafile=no-such.pem: what is there can't be used for TLS" in result.stderr
