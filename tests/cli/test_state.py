"""The state of single operators by command: what is listed, dropped and moved, and that each error's advice works."""

import json
import re
import shlex
import sys

import pytest

from operators.core.base import Batch
from runtime.encoding.serdes import Evolving, Tagged
from runtime.opening.stored_state import CHANGING
from runtime.ports.streams import Append
from runtime.systems.log.environment import LogEnvironment

HEAD = """
    from samza_dsl import App, count, tumbling
    app = App("shop")
    sales = app.input("sales", value=dict, key=lambda r: r["shop"])
"""
COUNT = 'scan(lambda n, r: (n or 0) + 1, emit=lambda k, n: (k, n){}).send_to(app.output("totals"))\n'
V1 = f"{HEAD}    sales.{COUNT.format('')}"
EUROS = 'sales.scan(lambda t, r: (t or 0) + r["eur"], op_id="euros").send_to(app.output("euros"))\n'
RENAMED = f"{HEAD}    sales.{COUNT.format(', op_id=' + chr(39) + 'counts' + chr(39))}"
PROCESS = (
    HEAD
    + """
    def f(r, c):
        c.state = (c.state or 0) + 1
        return [(c.key, c.state)]
    sales.process(f).send_to(app.output("totals"))
"""
)
REMOVED = HEAD + '    sales.map(lambda r: (r["shop"], 1)).send_to(app.output("totals"))\n'
REPARTITIONED = f'{HEAD}    sales.partition_by(lambda r: r["shop"], op_id="by").{COUNT.format("")}'
FOUR = f'{HEAD}    sales.partition_by(lambda r: r["shop"], op_id="by", partitions=4).{COUNT.format("")}'
MERGED = f"{HEAD}    sales.merge(app.input('sales2', value=dict, key=lambda r: r['shop'])).{COUNT.format('')}"
BETWEEN = HEAD + '    sales.partition_by(lambda r: r["shop"], op_id="by").send_to(app.output("totals"))\n'
JOINED = """
    from samza_dsl import App
    app = App("shop")
    sales = app.input("sales", value=dict).partition_by(lambda r: r["shop"], key_type=str, op_id="by")
    shops = app.table("shops", key=str, value=dict)
    sales.join(shops, lambda r, shop: (shop["of"], r["eur"])).send_to(app.output("totals"))
"""
WITH_EUROS = f"{V1}    {EUROS}"


@pytest.fixture
def shop(write, call):
    """Make `version(text)` the application, and `sell(...)` write some sales."""

    class Shop:
        def version(self, text):
            write("app.py", text)

        def sell(self, shops):
            call("streams", "produce", "sales", stdin="".join(f'{{"shop":"{s}","eur":10}}\n' for s in shops))

        def run(self, *more):
            return call("run", "app.py", "--until-now", *more)

        def totals(self, stream="totals"):
            shown = call("streams", "show", stream).stdout.splitlines()[1:]
            return [line.split()[-1] for line in shown]

    shop = Shop()
    shop.version(V1)
    shop.sell("abab")
    return shop


def advised(said, verb):
    """Return the command that an error advises, as one types it."""
    found = re.search(rf"samza-dsl (state {verb}[^;,]*?)(?=[;,]|\s*$)", said.replace("\n", " "))
    assert found, said
    return shlex.split(found[1])


@pytest.mark.parametrize("after", [PROCESS, REMOVED, REPARTITIONED, RENAMED, MERGED])
def test_what_an_error_says_to_forget_is_all_that_is_forgotten(after, shop, call):
    shop.version(WITH_EUROS)
    assert shop.run().exit_code == 0
    shop.version(f"{after}    {EUROS}")
    shop.sell("a")
    refused = shop.run()
    assert refused.exit_code != 0
    assert call(*advised(refused.stderr, "forget"), "--yes").stdout == "shop has dropped 2 keys of 'scan-sales'\n"
    again = shop.run()
    assert again.exit_code == 0, again.stderr
    assert shop.totals()[-1] == '["a",1]'
    assert shop.totals("euros")[-1] == "30"


@pytest.mark.parametrize("after", [REPARTITIONED, RENAMED, MERGED])
def test_what_an_error_says_to_move_goes_on_where_it_was(after, shop, call):
    assert shop.run().exit_code == 0
    shop.version(after)
    shop.sell("a")
    refused = shop.run()
    assert refused.exit_code == 1
    moved = call(*advised(refused.stderr, "move"))
    assert moved.exit_code == 0, moved.stderr
    again = shop.run()
    assert again.exit_code == 0, again.stderr
    assert shop.totals()[-1] == '["a",3]'
    assert len(shop.totals()) == 5


@pytest.mark.parametrize("after", [V1, RENAMED])
def test_no_move_is_advised_to_where_keys_lie_in_other_partitions(after, shop, call):
    shop.version(FOUR)
    assert shop.run().exit_code == 0
    shop.version(after)
    shop.sell("a")
    refused = shop.run()
    assert (refused.exit_code, "state move" in refused.stderr) == (1, False), refused.stderr
    assert call(*advised(refused.stderr, "forget"), "--yes").exit_code == 0
    assert shop.run().exit_code == 0
    assert shop.totals()[-1] == '["a",1]'


def test_a_stream_between_stages_that_is_gone_is_told_and_forgotten(shop, call, folder):
    shop.version(REPARTITIONED)
    assert shop.run().exit_code == 0
    environment = LogEnvironment(folder / ".samza-dsl")
    (between,) = [name for name, config in environment.streams().items() if config.intermediate]
    environment.delete_stream(between)
    environment.close()
    shop.sell("a")
    refused = shop.run()
    assert refused.exit_code == 1
    assert f"The stream '{between}' between stages is no longer there" in refused.stderr
    command = re.search(r"samza-dsl (state forget [^.]*)\.", refused.stderr.replace("\n", " "))
    assert call(*shlex.split(command[1]), "--yes").exit_code == 0
    again = shop.run()
    assert again.exit_code == 0, again.stderr
    assert shop.totals()[-1] == '["a",3]', "with all state"


def test_a_run_forgets_what_does_not_fit_once(shop, call):
    shop.run()
    shop.version(RENAMED)
    shop.sell("a")
    for total in (1, 2):
        run = shop.run("--forget", "scan-sales", "--forget", "counts", "--forget", "nosuch")
        assert run.exit_code == 0
        assert ("the state of counts fits the application, so it stays" in run.output) == (total > 1)
        assert ("to drop it all the same: samza-dsl state forget shop counts" in run.output) == (total > 1)
        dropped_before = ["nosuch"] if total == 1 else ["scan-sales", "nosuch"]
        kept = "none" if total == 1 else "counts"
        for name in dropped_before:
            assert f"nothing is kept of {name}, so nothing is dropped; 'shop' keeps state of: {kept}" in run.output
        assert shop.totals()[-1] == f'["a",{total}]'
        shop.sell("a")


def test_state_that_is_read_otherwise_is_forgotten_by_its_run(shop, write):
    shop.run()
    shop.version(PROCESS.replace("process(f)", 'process(f, op_id="scan-sales")'))
    shop.sell("a")
    refused = shop.run()
    assert "its state was kept as 'scan" in refused.stderr
    assert "op_id" not in refused.stderr
    assert shop.run("--forget", "scan-sales").exit_code == 0
    assert shop.totals()[-1] == '["a",1]'


def test_state_moves_to_other_partitions_of_a_repartitioning(shop):
    shop.version(f"{REPARTITIONED}    {EUROS}")
    shop.run()
    shop.version(f"{FOUR}    {EUROS}")
    shop.sell("a")
    moved = shop.run()
    assert moved.exit_code == 0, moved.stderr
    assert shop.totals()[-1] == '["a",3]', "where its keys are now"
    assert shop.totals("euros")[-1] == "30"


def test_state_moves_to_other_partitions_though_its_stage_has_another_name(shop):
    counted = 'scan(lambda n, r: (n or 0) + 1, op_id="counts").send_to(app.output("totals"))\n'
    for name, partitions in (("one", 2), ("other", 3)):
        by = f'partition_by(lambda r: r["shop"], op_id="{name}", partitions={partitions})'
        shop.version(f"{HEAD}    sales.{by}.{counted}")
        ran = shop.run()
        assert ran.exit_code == 0, ran.stderr
        shop.sell("ab")
    assert shop.run().exit_code == 0
    assert sorted(shop.totals())[-2:] == ["4", "4"]


def test_a_table_that_is_forgotten_is_read_anew(shop, call):
    shop.version(JOINED)
    call("streams", "produce", "shops", "--key", "shop", stdin='{"shop":"a","of":"Anna"}\n')
    ran = shop.run()
    assert ran.exit_code == 0, ran.stderr
    before = shop.totals()
    assert call("state", "forget", "app.py", "shops", "--yes").stdout == "shop has dropped 1 key of 'shops'\n"
    shop.sell("a")
    assert shop.run().exit_code == 0
    assert (len(before), shop.totals()[-1]) == (2, '["Anna",10]')


def left_between(folder, records):
    """Have records between stages that nobody has read, as a run leaves them that is killed."""
    log = LogEnvironment(folder / ".samza-dsl")
    encode = Tagged().encode
    batch = Batch([encode({"shop": "a", "eur": 10})] * records, [encode("a")] * records, [1] * records)
    log.append([Append("shop-by", 0, batch)])
    log.close()


def test_records_between_stages_that_nobody_reads_any_more_are_told_and_read_as_advised(shop, call, folder):
    shop.version(BETWEEN)
    assert shop.run().exit_code == 0
    left_between(folder, 3)
    shop.version(REMOVED)
    refused = shop.run()
    assert "3 records in 'shop-by', between stages, and no stage that reads them now" in refused.stderr
    assert call("state", "list", "shop").stdout.splitlines()[1].split()[:5] == ["by", "-", "-", "-", "3"]
    shop.version(BETWEEN)
    assert shop.run().exit_code == 0  # as the error says
    assert len(shop.totals()) == 7
    shop.version(REMOVED)
    assert shop.run().exit_code == 0


def test_records_between_stages_are_forgotten_as_advised(shop, call, folder):
    shop.version(BETWEEN)
    shop.run()
    left_between(folder, 1)
    shop.version(REMOVED)
    said = call(*advised(shop.run().stderr, "forget"), "--yes")
    assert said.stdout == "shop has dropped 1 unread record of 'by'\n"
    assert shop.run().exit_code == 0


def test_a_stage_that_comes_back_reads_nothing_again(shop):
    for text in (BETWEEN, REMOVED, BETWEEN):
        shop.version(text)
        assert shop.run().exit_code == 0
    assert len(shop.totals()) == 4
    shop.sell("a")
    assert shop.run().exit_code == 0
    assert len(shop.totals()) == 5


def test_what_is_stored_is_listed(shop, call):
    shop.version(WITH_EUROS)
    shop.run()
    shop.version(RENAMED)
    by_name, by_file = (call("state", "list", target).stdout.splitlines() for target in ("shop", "app.py"))
    assert [line.split()[:2] for line in by_name[1:]] == [["euros", "2"], ["scan-sales", "2"]]
    assert re.match(r"operator +keys +bytes +tasks +unread +since \(UTC\) +in the plan +kept as", by_file[0])
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +no +scan, any state", by_file[1])


@pytest.mark.parametrize(
    ("after", "arguments", "wrong"),
    [
        (PROCESS, ("app.py", "scan-sales", "process-sales"), "would read it as 'process"),
        (WITH_EUROS, ("app.py", "scan-sales", "euros"), "it is there still"),
        (RENAMED, ("app.py", "nosuch", "counts"), "has no state of 'nosuch': it has of euros, scan-sales"),
        (RENAMED, ("app.py", "scan-sales", "nosuch"), "no operator 'nosuch' that keeps state: write 'counts'"),
        (REMOVED, ("app.py", "scan-sales", "nosuch"), "it has none that keeps 'scan"),
        (RENAMED, ("shop", "scan-sales", "counts"), "needs the application's file in place of 'shop'"),
        (REMOVED + "    " + EUROS, ("app.py", "scan-sales", "euros"), "it has state of its own"),
        (FOUR, ("app.py", "scan-sales", "scan-by"), "lies in 1 partition, and its stage has its keys in 4 partitions"),
    ],
)
def test_a_move_that_can_not_be_done_changes_nothing(after, arguments, wrong, shop, call):
    shop.version(WITH_EUROS)
    shop.run()
    before = call("state", "list", "shop").stdout
    shop.version(after)
    refused = call("state", "move", *arguments)
    assert refused.exit_code != 0
    assert wrong in refused.stderr
    assert call("state", "list", "shop").stdout == before


def test_state_that_is_not_there_is_not_forgotten(shop, call):
    shop.run()
    refused = call("state", "forget", "shop", "nosuch", "--yes")
    assert (refused.exit_code, "has no state of 'nosuch': it has of scan-sales" in refused.stderr) == (1, True)
    assert "nothing was changed" in call("state", "forget", "shop", "scan-sales", stdin="n\n").stderr
    assert shop.run().exit_code == 0


@pytest.mark.parametrize("command", [("forget", "shop", "scan-sales", "--yes"), ("move", "app.py", "scan-sales", "c")])
def test_an_application_that_runs_is_left_alone(command, shop, call, folder):
    shop.run()
    log = LogEnvironment(folder / ".samza-dsl")
    log.own("shop")
    refused = call("state", *command)
    log.close()
    assert refused.exit_code == 1
    assert "shop" in refused.stderr
    assert CHANGING not in log_checkpoints(folder)


def log_checkpoints(folder):
    log = LogEnvironment(folder / ".samza-dsl")
    found = log.checkpoints("shop")
    log.close()
    return found


def test_the_second_of_two_alike_is_told_that_the_new_one_needs_a_name(shop):
    shop.run()
    shop.version(f"{V1}    {EUROS.replace(', op_id=' + chr(34) + 'euros' + chr(34), '')}")
    refused = shop.run()
    assert "a name of its own for the one that is new" in refused.stderr
    assert "one that has run before keeps 'scan-sales'" in refused.stderr
    assert json.loads(shop.totals()[-1]) == ["b", 2]


def test_advice_leads_on_where_an_input_was_made_anew_with_other_partitions(shop, call):
    count = """.scan(lambda n, r: (n or 0) + 1, emit=lambda k, n: (k, n), op_id="n").send_to(app.output("totals"))
"""
    version = HEAD.replace('r["shop"])', 'r["shop"], partitioned_by_key=True)') + f"    sales{count}    {EUROS}"
    shop.version(version)
    shop.run()
    assert call("streams", "delete", "sales").exit_code == 0
    call("streams", "produce", "sales", "--partitions", "2", stdin='{"shop":"a","eur":1}\n')
    commands = []
    while (refused := shop.run()).exit_code:
        found = re.findall(r"samza-dsl ((?:state forget|checkpoint set) [^;,)]+)", refused.stderr.replace("\n", " "))
        command = shlex.split(found[0].replace("APP", "shop"))
        assert command not in commands, "in a circle"
        commands.append(command)
        more = ["--yes"] if command[0] == "state" else []
        done = call(*command, *more)
        if "must say what becomes of it" in done.stderr:
            done = call(*command, "--state", "keep")
        assert done.exit_code == 0, done.stderr
    assert [command[:2] for command in commands] == [["state", "forget"], ["checkpoint", "set"]]
    assert shop.totals()[-1] == '["a",1]'


@pytest.mark.ci
def test_what_a_run_of_containers_says_to_forget_is_forgotten(shop, call):
    shop.run()
    shop.version(RENAMED)
    shop.sell("a")
    assert shop.run("--containers", "2", "--forget", "scan-sales").exit_code == 0
    assert shop.totals()[-1] == '["a",1]'


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        (("--from-start", "--state", "reset"), "leave --from-start or --forget out"),
        (("--on", "spark"), "Spark's lies in its checkpoint"),
    ],
)
def test_forgetting_goes_with_a_run_that_goes_on(more, wrong, shop, call):
    refused = call("run", "app.py", "--forget", "scan-sales", *more)
    assert (refused.exit_code, wrong in refused.stderr) == (2, True)


LAID = """
    from samza_dsl import App
    app = App("shop")
    read = app.input("sales", value=dict, timestamp=lambda r: 1)
    sales = read.partition_by(lambda r: r["shop"], op_id="by", partitions={})
    def count(r, c):
        c.state = (c.state or 0) + 1
        c.list("all").append(r["shop"])
        c.set_timer(9_000_000_000_000)
        return [(c.key, c.state, len(c.list("all")))]
    sales.process(count, on_timer=lambda at, c: [(c.key, "timer")], op_id="counts").send_to(app.output("totals"))
"""


def test_state_is_laid_anew_where_a_repartitioning_has_other_partitions(shop, call):
    shop.version(LAID.format(2))
    shop.sell("cdefgh")
    assert shop.run().exit_code == 0
    assert call("drain", "app.py").exit_code == 0
    exported = call("state", "export", "app.py", "counts").stdout
    shop.version(LAID.format(3))
    imported = call("state", "import", "app.py", "--yes", stdin=exported)
    assert imported.exit_code == 0, imported.stderr
    tasks = {json.loads(line)["task"] for line in call("state", "export", "app.py", "counts").stdout.splitlines()}
    assert tasks == {0, 2}, "where the keys hash to among three"
    assert call("state", "forget", "app.py", "by", "--yes").exit_code == 0
    shop.sell("abcdefgh")
    again = shop.run()
    assert again.exit_code == 0, again.stderr
    most = {}
    for key, number, listed in map(json.loads, shop.totals()):
        most[key] = max(most.get(key, (0, 0)), (number, listed))
    assert most == {key: (3, 3) if key in "ab" else (2, 2) for key in "abcdefgh"}
    call("streams", "end", "sales")
    assert shop.run().exit_code == 0
    shown = call("streams", "show", "totals", "--limit", "100").stdout
    assert sorted(re.findall(r'\["(\w)","timer"\]', shown)) == [*"abcdefgh"]


HANDED_ON = """
    from msgspec import Struct
    from samza_dsl import App
    class Sale(Struct):
        {field}
    app = App("shop")
    sales = app.input("sales", value=dict).map(lambda r: Sale({made}))
    by_shop = sales.partition_by(lambda s: "a", op_id="by")
    by_shop.map(lambda sale: sale.{read}).send_to(app.output("totals"))
"""
OLD = HANDED_ON.format(field="eur: int", made='r["eur"]', read="eur")
NEW = HANDED_ON.format(field="cents: list[str]", made='[str(r["eur"])]', read="cents")


@pytest.mark.parametrize("command", [("drain", "app.py"), ("run", "app.py", "--drain")])
def test_a_drain_reads_no_input_and_empties_what_lies_between_stages(command, shop, call, folder):
    shop.version(OLD)
    assert shop.run().exit_code == 0
    log = LogEnvironment(folder / ".samza-dsl")
    old = Evolving().encode(sys.modules["app"].Sale(7))
    log.append([Append("shop-by", 0, Batch([old] * 3, [Tagged().encode("a")] * 3, [1] * 3))])
    before = log.checkpoints("shop")["0"].position_of("sales", 0).offset
    log.close()
    shop.sell("ab")
    drained = call(*command)
    assert drained.exit_code == 0, drained.stderr
    assert shop.totals() == ["10"] * 4 + ["7"] * 3
    assert call("state", "list", "shop").stdout.splitlines()[1].split()[:5] == ["by", "-", "-", "-", "0"]
    log = LogEnvironment(folder / ".samza-dsl")
    assert log.checkpoints("shop")["0"].position_of("sales", 0).offset == before
    log.close()
    shop.version(NEW)
    assert shop.run().exit_code == 0
    assert shop.totals()[7:] == ['["10"]'] * 2


def test_a_drain_is_of_a_run_that_goes_on_here(shop, call):
    shop.run()
    assert "leave --from-start and --on out" in call("run", "app.py", "--drain", "--from-start").stderr
    shop.sell("a")
    assert call("drain", "app.py").exit_code == 0
    assert len(shop.totals()) == 4
    assert shop.run().exit_code == 0
    assert len(shop.totals()) == 5
