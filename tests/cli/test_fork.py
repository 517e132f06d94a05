"""A changed program runs beside the live one on its state, and their results are compared."""

import pytest

HEAD = """
    from samza_dsl import App, count, total, tumbling
    app = App("shop")
    sales = app.input("sales", value=dict, timestamp=lambda r: r["at"])
    by_shop = sales.partition_by(lambda r: r["shop"], partitions=2, op_id="by-shop")
    by_shop.scan(lambda n, r: n + 1, init=int, op_id="counts").send_to(app.output("counts", key=str, value=int))
    by_shop.window(tumbling(seconds={}), count(), op_id="sums").send_to(app.output("sums"))
"""


def sold(*times):
    return "".join(f'{{"shop":"{"abc"[at % 3]}","at":{at * 500}}}\n' for at in times)


@pytest.fixture
def live(write, call):
    """Run a program over some sales, and write another one beside it."""
    write("app.py", HEAD.format(2))
    call("streams", "produce", "sales", stdin=sold(*range(21)))
    assert call("run", "app.py", "--until-now").exit_code == 0

    def go_on(*arguments):
        call("streams", "produce", "sales", stdin=sold(*range(21, 40)))
        assert call("run", "app.py", "--until-now").exit_code == 0
        forked = call("fork", "app.py", "app2.py", "--as", "trial", "--until-now", *arguments)
        assert forked.exit_code == 0, forked.stderr
        return forked.stdout

    return go_on


@pytest.mark.parametrize("at", ["now", "15", "1970-01-01T00:00:07"])
def test_a_fork_of_the_same_program_writes_the_same(at, live, write, call):
    write("app2.py", HEAD.format(2))
    assert call("fork", "app.py", "app2.py", "--as", "trial", "--until-now", "--at", at).exit_code == 0
    assert "compare: samza-dsl diff sums trial-sums" in live()
    for stream in ("counts", "sums"):
        same = call("diff", stream, f"trial-{stream}")
        assert same.exit_code == 0, same.stdout
        assert ", 0 in" in same.stdout and not same.stdout.startswith("0 in both")


def test_a_changed_window_is_computed_from_history_and_compared(live, write, call):
    write("app2.py", HEAD.format(4))
    begun = call("fork", "app.py", "app2.py", "--as", "trial", "--until-now")
    assert "shop.trial is forked from shop at now" in begun.stdout, begun.stderr
    assert "shop.trial computes 'sums' from history (21 offsets of 'sales')" in begun.stdout
    live()
    assert call("diff", "counts", "trial-counts").exit_code == 0
    told = call("diff", "sums", "trial-sums")
    assert told.exit_code == 1 and "only in" in told.stdout
    # The live run keeps what it has.
    assert call("evolve", "app.py").exit_code == 0


def test_what_can_not_be_forked_is_refused(live, write, call):
    write("app2.py", HEAD.format(2).replace('App("shop")', 'App("store")'))
    other = call("fork", "app.py", "app2.py", "--as", "trial")
    assert (other.exit_code, "name it as that one" in other.stderr) == (2, True)
    write("new.py", HEAD.format(2).replace('App("shop")', 'App("new")'))
    none = call("fork", "new.py", "new.py", "--as", "trial")
    assert (none.exit_code, "has committed nothing" in none.stderr) == (1, True)
    stray = call("fork", "app.py", "app.py", "--as", "trial", "--bind", "sails=sales.jsonl")
    assert (stray.exit_code, "has no stream 'sails'" in stray.stderr) == (2, True)


@pytest.mark.parametrize("at", ["now", "15"])
def test_a_fork_reads_what_the_live_run_binds(at, write, call):
    write("app.py", HEAD.format(2))
    write("app2.py", HEAD.format(2) + '    by_shop.scan(lambda n, r: n + 1, init=int).send_to(app.output("more"))\n')
    write("sales.jsonl", sold(*range(21)))
    bound = ("--bind", "sales=sales.jsonl")
    live = ("run", "app.py", "--until-now", *bound)
    fork = ("fork", "app.py", "app2.py", "--as", "trial", "--until-now", *bound)
    assert call(*live).exit_code == 0
    forked = call(*fork, "--at", at)
    assert forked.exit_code == 0, forked.stderr
    write("sales.jsonl", sold(*range(40)))
    for command in (live, fork):
        assert call(*command).exit_code == 0
    for stream in ("counts", "sums")[: 1 if at == "15" else 2]:
        same = call("diff", stream, f"trial-{stream}")
        assert same.exit_code == 0, same.stdout
        assert not same.stdout.startswith("0 in both")
